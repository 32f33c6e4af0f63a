# mkrun. `make help` lists the targets.

GOLANGCI_VERSION := v2.15.0

# One set of flags for build, test and lint, so that they share the build cache. The version is
# stamped by LDFLAGS; the deprecation warnings are go-nvml's own.
export GOFLAGS := -trimpath -buildvcs=false
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -X github.com/mkrun/mkrun/internal/version.version=$(VERSION) \
           -X github.com/mkrun/mkrun/internal/version.commit=$(COMMIT)

TOOLS := $(CURDIR)/.tools/bin
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)
SHELL_SCRIPTS = .ci/run $(shell find scripts cuda -name '*.sh')

# The first run: a layer of Llama-3 8B on two pretended nodes with two ranks each.
RUN ?= launch --nodes 2 --ppn 2 --check ag_gemm --shape llama3-8b/mlp-up/tp4 --tokens 128
TEST_FLAGS ?= -timeout 30m
PKGS ?= ./...
# go test would vet all packages and what they import anew for each way of building them; `make lint` vets them, once.
CITEST := go run ./internal/citest -vet=off

.DEFAULT_GOAL := build

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-23s %s\n", $$1, $$2 }'

.PHONY: setup
setup: ## install what building needs (Debian packages when root; otherwise names them)
	@scripts/setup.sh build

.PHONY: build
build: setup ## build bin/mkrun
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS)' -o bin/mkrun ./cmd/mkrun

.PHONY: run
run: build ## build, then run and check AllGather+GEMM of a Llama-3 8B layer on 2 nodes x 2 ranks, without a GPU
	bin/mkrun $(RUN)

.PHONY: test
test: setup test-plain test-race ## all tests: unit and end to end, then all again under the race detector

.PHONY: test-plain
test-plain: net
	$(CITEST) $(TEST_FLAGS) $(PKGS)

.PHONY: test-race
test-race: net
	$(CITEST) -race $(TEST_FLAGS) $(PKGS)

.PHONY: test-hosts
test-hosts: net ## tests on four hosts, made of network namespaces (needs root)
	@scripts/setup.sh testbed
	$(CITEST) -tags testbed -timeout 20m ./internal/e2e

.PHONY: test-rxe
test-rxe: build net ## tests over real RDMA verbs: two virtual machines with Soft-RoCE (needs neither KVM nor root, but packages)
	@scripts/setup.sh rxe
	CGO_ENABLED=0 $(CITEST) -tags rxe -timeout 15m -exec '$(CURDIR)/scripts/rxe.sh run -s 840' ./internal/e2e/rxe

.PHONY: test-pictures
test-pictures: ## draw topologies in headless Chromium and look at the pictures
	@scripts/setup.sh pictures
	$(CITEST) -tags chromium -timeout 10m -run TestPictures ./internal/topology

.PHONY: bench-launch
bench-launch: ## start 16 ranks in every way, beside ssh, srun, mpirun and torchrun where they are there, in turns (needs root)
	@scripts/setup.sh testbed
	@scripts/setup.sh contenders
	go test -tags testbed -run '^$$' -bench Launch -benchtime 15x -timeout 20m ./internal/e2e

.PHONY: bench-failures
bench-failures: ## the same harm to a job of mkrun, mpirun and torchrun: seconds until nothing is left (needs root)
	@scripts/setup.sh testbed
	@scripts/setup.sh contenders
	go test -tags testbed -run '^$$' -bench Failures -benchtime 1x -timeout 30m ./internal/e2e

.PHONY: bench-scale
bench-scale: setup ## up to 1,024 agents in one process: time until all have the roster, memory of each; drawn into docs/
	go test ./internal/launch -run '^$$' -bench Swarm -benchtime 3x -timeout 10m -plot $(CURDIR)/docs

.PHONY: bench
bench: setup ## the CPU engine against one plain gonum product; the time to start a job
	go test -run '^$$' -bench AGGemmVsGonum ./internal/engine/cpu
	go test -run '^$$' -bench Start -benchtime 7x ./cmd/mkrun

.PHONY: lint
lint: $(GOLANGCI) ## gofmt, go vet, golangci-lint and shellcheck
	@scripts/setup.sh lint
	@unformatted=$$(gofmt -l cmd configs internal scripts); if [ -n "$$unformatted" ]; then echo "not formatted (gofmt -w):"; echo "$$unformatted"; exit 1; fi
	go vet -tags testbed,chromium,rxe ./...
	$(GOLANGCI) run ./...
	@if command -v shellcheck >/dev/null; then set -x; shellcheck $(SHELL_SCRIPTS); else echo "shellcheck is not installed: the shell scripts are not checked"; fi

$(GOLANGCI):
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) scripts/again.sh go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(TOOLS)/golangci-lint $@

.PHONY: clean
clean: ## remove what was built (the tools in .tools stay)
	rm -rf bin build

.PHONY: setup-cuda
setup-cuda:
	@scripts/setup.sh cuda

cuda: setup-cuda ## build the CUDA data plane, build/libmkernel.so (needs no GPU)
cuda-test: setup-cuda ## test the CUDA data plane's host side (needs no GPU)
look-for-cuda: setup-cuda # what compiles waits for it, whatever make does at the same time

include cuda/net/net.mk
-include cuda/cuda.mk
