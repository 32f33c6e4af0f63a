# The CUDA data plane. Targets: cuda (build/libmkernel.so and its GPU programs), cuda-test (host-side tests, no GPU),
# cuda-tests (builds them), clean-cuda. The compiler comes from scripts/cuda-toolchain.sh.

CUDA_OUT := build/cuda
CUDA_LIB := build/libmkernel.so

# Looked up when a rule runs, so that other targets of the Makefile do not install a compiler. The path may hold blanks.
CUDA_ROOT_FILE := $(CUDA_OUT)/toolchain
CUDA_ROOT = "$$(cat $(CUDA_ROOT_FILE))"

CUDA_GENCODE := -gencode=arch=compute_90a,code=sm_90a
NVCC_FLAGS := -std=c++17 -O3 $(CUDA_GENCODE) -Icuda -lineinfo -Xcompiler -fPIC,-Wall,-fvisibility=hidden -Xptxas -v
CUDA_CXXFLAGS := -std=c++17 -O2 -g -fPIC -Wall -Wextra -Wno-missing-field-initializers -fvisibility=hidden -Icuda
CUDA_LINK = -L$(CUDA_ROOT)/lib64 -L$(CUDA_ROOT)/lib -lcudart_static -ldl -lrt -lpthread

CUDA_HEADERS := $(wildcard cuda/*/*.h cuda/*/*.cuh)
CUDA_HOST_OBJECTS := $(patsubst cuda/%.cpp,$(CUDA_OUT)/%.o,$(wildcard cuda/host/*.cpp cuda/heap/*.cpp))
CUDA_KERNEL_OBJECTS := $(patsubst cuda/%.cu,$(CUDA_OUT)/%.o,$(wildcard cuda/kernels/*.cu))
CUDA_GPU_PROGRAMS := $(patsubst cuda/tests/gpu_%.cu,build/gpu_%,$(wildcard cuda/tests/gpu_*.cu))

# Plans for the tests and benches, as NODESxRANKS-cCHUNKS; mkrun writes them. RANKS: on each node, or a list.
CUDA_PLAN_NAMES := 1x1-c1 1x2-c1 1x2-c3 1x4-c1 1x4-c3 1x8-c1 1x8-c3 2x1-c1 2x1-c2 2x1-c4 2x1-c8 2x1-c16 2x2-c1 2x2,1-c1 2x2-c2 2x2-c4 \
  2x4-c1 2x4-c2 2x4-c4 4x2-c2 2x8-c1
CUDA_PLANS := build/plans/written

.PHONY: cuda cuda-test cuda-tests clean-cuda look-for-cuda
cuda: $(CUDA_LIB) $(CUDA_GPU_PROGRAMS) build/example_ag_gemm $(CUDA_PLANS)

# Looked for each time, so that another CUDA_HOME is noticed; written only if it is another.
$(CUDA_ROOT_FILE): look-for-cuda
	@mkdir -p $(@D)
	@scripts/cuda-toolchain.sh > $@.part
	@if cmp -s $@.part $@; then rm $@.part; else mv $@.part $@; echo "CUDA compiler: $$(cat $@)"; fi

# Kernels: no warning of a lost warp-specialised pipeline and no spill is let through (cuda/ptxas-check.sh).
$(CUDA_OUT)/kernels/%.o: cuda/kernels/%.cu $(CUDA_HEADERS) $(CUDA_ROOT_FILE)
	@mkdir -p $(@D)
	$(CUDA_ROOT)/bin/nvcc $(NVCC_FLAGS) -c $< -o $@.part 2> $@.log || { cat $@.log >&2; exit 1; }
	sh cuda/ptxas-check.sh $@.log
	mv $@.part $@

$(CUDA_OUT)/%.o: cuda/%.cpp $(CUDA_HEADERS) $(CUDA_ROOT_FILE)
	@mkdir -p $(@D)
	$(CXX) $(CUDA_CXXFLAGS) -isystem $(CUDA_ROOT)/include -c $< -o $@

$(CUDA_LIB): $(CUDA_HOST_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(NET_OBJECTS) cuda/mkernel.map
	$(CXX) -shared -o $@ $(CUDA_HOST_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(NET_OBJECTS) -Wl,--version-script=cuda/mkernel.map \
	  -Wl,--no-undefined $(CUDA_LINK)

# Programs that need GPUs; the C++ runtime is linked in, so that they run on machines with another one.
build/gpu_%: cuda/tests/gpu_%.cu $(CUDA_HEADERS) $(CUDA_LIB)
	$(CUDA_ROOT)/bin/nvcc -std=c++17 -O2 $(CUDA_GENCODE) -Icuda $< -o $@ -Lbuild -lmkernel -Xlinker -rpath,'$$ORIGIN' \
	  -Xcompiler -static-libstdc++ -lpthread

$(CUDA_PLANS): cuda/cuda.mk $(wildcard internal/plan/*.go)
	@mkdir -p $(@D)
	go build -o $(@D)/mkrun ./cmd/mkrun
	for name in $(CUDA_PLAN_NAMES); do \
	  chunks=$${name#*-c}; world=$${name%-c*}; \
	  $(@D)/mkrun plan --nodes $${world%x*} --ppn $${world#*x} --binary $(@D)/ag_gemm-$$name \
	    ag_gemm --chunks $$chunks --m 8192 --n 1024 --k 8192 > /dev/null || exit 1; \
	done
	rm $(@D)/mkrun
	touch $@

build/example_ag_gemm: examples/c/ag_gemm.c cuda/include/mkernel.h $(CUDA_LIB)
	$(CC) -std=c11 -O2 -Wall -Wextra -Icuda/include -isystem $(CUDA_ROOT)/include $< -o $@ -Lbuild -lmkernel \
	  -Wl,-rpath,'$$ORIGIN' $(CUDA_LINK) -lm

# Host-side tests with address and undefined-behaviour sanitizers.
CUDA_TEST_FLAGS := -O1 -g1 -Wall -Wextra -Wno-missing-field-initializers -fsanitize=address,undefined \
  -fno-sanitize-recover=all -Icuda
CUDA_TEST_SOURCES := $(wildcard cuda/tests/host_*.cpp cuda/host/*.cpp cuda/heap/*.cpp)
CUDA_TEST_OBJECTS := $(patsubst cuda/%.cpp,$(CUDA_OUT)/sanitized/%.o,$(CUDA_TEST_SOURCES)) $(CUDA_OUT)/sanitized/tests/host_c_header.o
$(CUDA_OUT)/sanitized/%.o: cuda/%.cpp $(CUDA_HEADERS) $(CUDA_ROOT_FILE)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(CUDA_TEST_FLAGS) -isystem $(CUDA_ROOT)/include -c $< -o $@
$(CUDA_OUT)/sanitized/%.o: cuda/%.c $(CUDA_HEADERS)
	@mkdir -p $(@D)
	$(CC) -std=c99 -pedantic $(CUDA_TEST_FLAGS) -c $< -o $@
$(CUDA_OUT)/host_tests: $(CUDA_TEST_OBJECTS) $(CUDA_KERNEL_OBJECTS) $(NET_OBJECTS)
	$(CXX) $(CUDA_TEST_FLAGS) $^ -o $@ $(CUDA_LINK)

cuda-tests: $(CUDA_OUT)/host_tests
cuda-test: $(CUDA_OUT)/host_tests $(CUDA_LIB) $(CUDA_PLANS)
	$(CUDA_OUT)/host_tests

clean-cuda:
	rm -rf $(CUDA_OUT) $(CUDA_LIB) $(CUDA_GPU_PROGRAMS) build/plans build/example_ag_gemm
