/* The interface is C: this file compiles as C99 and nothing more. */
#include "include/mkernel_device.h"
#include "include/mkernel_measure.h"

uint32_t header_version_seen_from_c(void) {
  mk_ag_gemm_args args;
  MK_INIT(&args);
  return args.size == sizeof args ? args.version : 0;
}
