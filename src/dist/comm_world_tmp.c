#include "comm.h"
__attribute__((weak)) eas_status comm_world(comm **out)
{
    static comm *own;
    eas_status st = own ? EAS_OK : comm_self(&own);
    *out = own;
    return st;
}
