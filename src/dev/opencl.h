/* opencl.h: the part of the OpenCL 1.2 interface that opencl.c calls, declared as its specification lays it
 * out. The loader is opened at run time, so nothing of OpenCL is needed to build. */
#ifndef DEV_OPENCL_H
#define DEV_OPENCL_H

#include <stddef.h>
#include <stdint.h>

typedef struct cl_platform *cl_platform_id;
typedef struct cl_device *cl_device_id;
typedef struct cl_context_ *cl_context;
typedef struct cl_command_queue_ *cl_command_queue;
typedef struct cl_mem_ *cl_mem;
typedef struct cl_program_ *cl_program;
typedef struct cl_kernel_ *cl_kernel;
typedef struct cl_event_ *cl_event;
typedef int32_t cl_int;
typedef uint32_t cl_uint, cl_bool;
typedef uint64_t cl_bits;

enum {
    CL_SUCCESS = 0,
    CL_DEVICE_NOT_FOUND = -1,
    CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
    CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6,
    CL_BUILD_PROGRAM_FAILURE = -11,
    CL_INVALID_WORK_GROUP_SIZE = -54,
    CL_INVALID_BUFFER_SIZE = -61,

    CL_COMPLETE = 0,
    CL_PLATFORM_NAME = 0x0902,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_MAX_PARAMETER_SIZE = 0x1017,
    CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_NAME = 0x102B,
    CL_MEM_SIZE = 0x1102,
    CL_MEM_CONTEXT = 0x1106,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_DEVICE_EXTENSIONS = 0x1030,
    CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032,
    CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
    CL_PROFILING_COMMAND_END = 0x1283,
};
#define CL_DEVICE_TYPE_CPU ((cl_bits)2)
#define CL_DEVICE_TYPE_GPU ((cl_bits)4)
#define CL_DEVICE_TYPE_ACCELERATOR ((cl_bits)8)
#define CL_DEVICE_TYPE_ALL ((cl_bits)0xFFFFFFFF)
#define CL_QUEUE_PROFILING_ENABLE ((cl_bits)2)
#define CL_MEM_READ_WRITE ((cl_bits)1)
#define CL_MEM_READ_ONLY ((cl_bits)4)
#define CL_MEM_USE_HOST_PTR ((cl_bits)8)
#define CL_MAP_READ ((cl_bits)1)
#define CL_FP_DENORM ((cl_bits)1)
#define CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT ((cl_bits)128)

/* X(result, name, parameters) */
#define OPENCL_FUNCTIONS(X) \
    X(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *)) \
    X(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void *, size_t *)) \
    X(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bits, cl_uint, cl_device_id *, cl_uint *)) \
    X(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *)) \
    X(cl_context, clCreateContext, \
      (const intptr_t *, cl_uint, const cl_device_id *, \
       void (*)(const char *, const void *, size_t, void *), void *, cl_int *)) \
    X(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bits, cl_int *)) \
    X(cl_int, clReleaseCommandQueue, (cl_command_queue)) \
    X(cl_mem, clCreateBuffer, (cl_context, cl_bits, size_t, void *, cl_int *)) \
    X(cl_int, clRetainMemObject, (cl_mem)) \
    X(cl_int, clReleaseMemObject, (cl_mem)) \
    X(cl_int, clGetMemObjectInfo, (cl_mem, cl_uint, size_t, void *, size_t *)) \
    X(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char **, const size_t *, cl_int *)) \
    X(cl_program, clCreateProgramWithBinary, \
      (cl_context, cl_uint, const cl_device_id *, const size_t *, const unsigned char **, cl_int *, \
       cl_int *)) \
    X(cl_int, clBuildProgram, \
      (cl_program, cl_uint, const cl_device_id *, const char *, void (*)(cl_program, void *), void *)) \
    X(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void *, size_t *)) \
    X(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *)) \
    X(cl_int, clReleaseProgram, (cl_program)) \
    X(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *)) \
    X(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *)) \
    X(cl_int, clReleaseKernel, (cl_kernel)) \
    X(cl_int, clEnqueueNDRangeKernel, \
      (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, \
       const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueReadBuffer, \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void *, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueWriteBuffer, \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void *, cl_uint, const cl_event *, \
       cl_event *)) \
    X(cl_int, clEnqueueCopyBuffer, \
      (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event *, cl_event *)) \
    X(void *, clEnqueueMapBuffer, \
      (cl_command_queue, cl_mem, cl_bool, cl_bits, size_t, size_t, cl_uint, const cl_event *, cl_event *, \
       cl_int *)) \
    X(cl_int, clEnqueueUnmapMemObject, \
      (cl_command_queue, cl_mem, void *, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueMarkerWithWaitList, (cl_command_queue, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueBarrierWithWaitList, (cl_command_queue, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clWaitForEvents, (cl_uint, const cl_event *)) \
    X(cl_int, clGetEventInfo, (cl_event, cl_uint, size_t, void *, size_t *)) \
    X(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void *, size_t *)) \
    X(cl_int, clRetainEvent, (cl_event)) \
    X(cl_int, clReleaseEvent, (cl_event)) \
    X(cl_int, clFlush, (cl_command_queue)) \
    X(cl_int, clFinish, (cl_command_queue))

#endif
