/* msl_shim.h: what compiled kernels ask of whoever runs them. The shim's metal_stdlib has the same structure.
 */
#ifndef MSL_SHIM_H
#define MSL_SHIM_H

typedef struct eas_shim_calls {
    void (*barrier)(void); /* waits for every thread of the group */
    unsigned (*lane)(void); /* of the calling thread in its simdgroup */
    unsigned char *(*group_memory)(void);
    /* Gives mine to the other lanes of the simdgroup and waits for theirs: 32 slots of 16 bytes; bit i of
     * *active: lane i gave one. */
    const unsigned char *(*exchange)(const void *mine, unsigned bytes, unsigned *active);
} eas_shim_calls;

const eas_shim_calls *msl_calls(void);

#endif
