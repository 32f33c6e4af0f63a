# The inter-node path, by g++ alone. Targets: net (build/libmknet.so), net-test (its tests under sanitizers), net-tests
# (builds them), net-layout (our declarations of others' libraries), net-bench (build/net-bench), bench-net (measurements
# with it).

NET_OUT := build/net
NET_LIB := build/libmknet.so
NET_CXXFLAGS := -std=c++17 -O2 -g -fPIC -Wall -Wextra -Wno-missing-field-initializers -fvisibility=hidden -Icuda
NET_HEADERS := $(wildcard cuda/net/*.h cuda/include/*.h cuda/tests/*.h)
NET_SOURCES := $(wildcard cuda/net/*.cpp)
NET_OBJECTS := $(NET_SOURCES:cuda/%.cpp=$(NET_OUT)/%.o)
NET_FAKE := $(wildcard cuda/tests/fake/*.cpp)
NET_TEST_SOURCES := $(wildcard cuda/tests/net_*.cpp) cuda/tests/host_main.cpp

.PHONY: net net-test net-layout
net: $(NET_LIB) $(NET_OUT)/fakeverbs.so $(NET_OUT)/fake-efa/lib/libefa.so.1 ## build the inter-node path, build/libmknet.so (needs no GPU and no NIC)

$(NET_OUT)/%.o: cuda/%.cpp $(NET_HEADERS)
	@mkdir -p $(@D)
	$(CXX) $(NET_CXXFLAGS) -c $< -o $@

# The C++ runtime is linked in, so that the library runs on machines with another one.
$(NET_LIB): $(NET_OBJECTS) cuda/net/mknet.map
	$(CXX) -shared -o $@ $(NET_OBJECTS) -static-libstdc++ -static-libgcc -Wl,--version-script=cuda/net/mknet.map \
	  -Wl,--no-undefined -ldl -lrt -lpthread

# For tests of other parts, which take it in the place of libibverbs: four RoCE NICs.
$(NET_OUT)/fakeverbs.so: $(NET_FAKE) $(NET_HEADERS) $(wildcard cuda/tests/fake/*.h)
	@mkdir -p $(@D)
	$(CXX) $(NET_CXXFLAGS) -fvisibility=default -DFAKE_DEVICES=4 -shared $(NET_FAKE) -o $@ -lpthread

# And in the place of libefa, as an installation of EFA has it: two EFA devices, whose writes are cut and mixed.
$(NET_OUT)/fake-efa/lib/libefa.so.1: $(NET_FAKE) $(NET_HEADERS) $(wildcard cuda/tests/fake/*.h)
	@mkdir -p $(@D)
	$(CXX) $(NET_CXXFLAGS) -fvisibility=default -DFAKE_EFA=2 -shared $(NET_FAKE) -o $@ -lpthread

# Tests, once for memory and undefined behaviour and once for races. -g1: a sanitizer names functions and lines, and gcc
# takes a fifth less time than with all of -g.
NET_CHECKED := -std=c++17 -O1 -g1 -Wall -Wextra -Wno-missing-field-initializers -fno-omit-frame-pointer -Icuda
NET_SANITIZE_memory := -fsanitize=address,undefined -fno-sanitize-recover=all
NET_SANITIZE_thread := -fsanitize=thread

define net_checked
$(NET_OUT)/$(1)/%.o: cuda/%.cpp $(NET_HEADERS)
	@mkdir -p $$(@D)
	$(CXX) $(NET_CHECKED) $(NET_SANITIZE_$(1)) -c $$< -o $$@
$(NET_OUT)/fakeverbs-$(1).so: $(NET_FAKE) $(wildcard cuda/tests/fake/*.h) $(NET_HEADERS)
	@mkdir -p $$(@D)
	$(CXX) $(NET_CHECKED) -fPIC -shared $(NET_SANITIZE_$(1)) $(NET_FAKE) -o $$@
$(NET_OUT)/fakefabric-$(1).so: $(wildcard cuda/tests/fake/ofi/*) $(NET_HEADERS)
	@mkdir -p $$(@D)
	$(CXX) $(NET_CHECKED) -fPIC -shared $(NET_SANITIZE_$(1)) $(wildcard cuda/tests/fake/ofi/*.cpp) -Wl,--version-script=cuda/tests/fake/ofi/fabric.map -o $$@
$(NET_OUT)/tests-$(1): $(patsubst cuda/%.cpp,$(NET_OUT)/$(1)/%.o,$(NET_SOURCES) $(NET_TEST_SOURCES))
	$(CXX) $(NET_SANITIZE_$(1)) $$^ -o $$@ -ldl -lrt -lpthread
endef
$(eval $(call net_checked,memory))
$(eval $(call net_checked,thread))

NET_TEST_NEEDS = $(NET_OUT)/tests-$(1) $(NET_OUT)/fakeverbs-$(1).so $(NET_OUT)/fakefabric-$(1).so

.PHONY: net-tests
net-tests: $(call NET_TEST_NEEDS,memory) $(call NET_TEST_NEEDS,thread)

# One after the other, each with the whole machine: their threads wait for each other, some with short bounds.
net-test: net-tests net-layout ## test the inter-node path (needs no GPU and no NIC)
	$(NET_OUT)/tests-memory
	$(NET_OUT)/tests-thread

# Our declarations of libibverbs, libefa and libfabric against their headers. Nothing to run.
LAYOUT := $(CXX) -std=c++17 -Wall -Wextra -Icuda -Wno-enum-compare -fsyntax-only
net-layout: ## compare declarations of libibverbs, libefa and libfabric with their headers
	@scripts/setup.sh net
	$(if $(wildcard /usr/include/infiniband/efadv.h),$(LAYOUT) cuda/tests/rxe_layout.cpp && $(LAYOUT) cuda/tests/efa_layout.cpp,@echo libibverbs-dev is not installed)
	$(if $(wildcard /usr/include/rdma/fabric.h),$(LAYOUT) cuda/tests/ofi_layout.cpp,@echo libfabric-dev is not installed)

# Measurements.
NET_BENCH_OBJECTS := $(patsubst cuda/%.cpp,$(NET_OUT)/%.o,$(wildcard cuda/net/bench/*.cpp))
$(NET_BENCH_OBJECTS): $(wildcard cuda/net/bench/*.h)
build/net-bench: $(NET_BENCH_OBJECTS) $(NET_OBJECTS)
	$(CXX) $^ -o $@ -static-libstdc++ -static-libgcc -ldl -lrt -lpthread

.PHONY: net-bench bench-net
net-bench: build/net-bench
bench-net: build net net-bench ## latency, message rate and bandwidth of the networks that run here; of ibverbs beside perftest, over Soft-RoCE
	@scripts/setup.sh rxe
	scripts/bench-net.sh
