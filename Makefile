# The two commands: `make demo` shows two hosts talking over ib0, `make test`
# runs every test. Both install the Debian packages that they need.

SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := build

# Budgets: how long each ring of tests may take, including its compilation; 80
# minutes in all. On a machine that has not run the linters yet, they are compiled
# first.
TIDY_BUDGET  ?= 2m
LINT_BUDGET  ?= 10m
FUZZ_BUDGET  ?= 4m
UNIT_BUDGET  ?= 11m
NETNS_BUDGET ?= 6m
E2E_BUDGET   ?= 13m
VM_BUDGET    ?= 33m
SOAK_BUDGET  ?= 3h

# FUZZTIME: executions of each fuzz target. (A time, such as 5m, sometimes fails
# with "context deadline exceeded", go.dev/issue/75804.) DEMO_MTUS: the underlay
# MTUs of the demo. FAULTS_EACH: how often `make faults` injects each fault.
FUZZTIME    ?= 1000000x
DEMO_MTUS   ?= 1500 9000
FAULTS_EACH ?= 10

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ipoibd
export GOCACHE             := $(CACHE)/go-build
export GOLANGCI_LINT_CACHE := $(CACHE)/golangci-lint
export FUZZTIME
# The version comes by -ldflags; Go's own stamp needs a checkout that git trusts.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LINT    := go tool -modfile=tools/go.mod golangci-lint
TESTSUM := go run ./scripts/testsum $(if $(filter true,$(CI)),--no-skips)

# ring runs the tests of packages as JSON: $(call ring,packages,budget,flags).
# The budget bounds each test binary, which then says where it hangs, and the
# ring as a whole.
ring = timeout --kill-after=10s $(2) go test -json -timeout=$(2) $(3) $(1)

# check runs a command as if it were the tests of a package, so that testsum counts
# its failure and shows its output: $(call check,name,budget,command).
check = go tool test2json -t -p $(1) timeout --kill-after=10s $(2) $(3)

# A package belongs to the namespace ring by importing nstest, so that there is
# no list to keep.
packages = $$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '$(1) {print $$1}')
E2E     := ipoibd/scripts/e2e
IS_NS   := /linktest\/nstest/
IS_E2E  := $$1 == "$(E2E)"
VM      := ipoibd/scripts/vm
IS_VM   := $$1 == "$(VM)"

.PHONY: build
build:
	go build -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/ipoibd

.PHONY: deps deps-vm
deps:
	@scripts/deps
deps-vm: deps
	@scripts/deps vm || echo "the tests with guests will say what is missing" >&2

# Every ring runs, also after a failure, and all are counted together.
.PHONY: test
test: deps-vm
	@$(MAKE) --no-print-directory --keep-going --silent test-tidy test-lint test-unit test-fuzz test-netns test-e2e test-vm | $(TESTSUM)

.PHONY: test-tidy test-lint test-unit test-fuzz test-netns test-e2e test-vm
test-tidy:
	$(call check,go.mod,$(TIDY_BUDGET),bash -c 'go mod tidy -diff && go -C tools mod tidy -diff')
test-lint:
	$(call check,golangci-lint,$(LINT_BUDGET),$(LINT) run ./...)
test-fuzz:
	FUZZTIME=30000x timeout --kill-after=10s $(FUZZ_BUDGET) scripts/fuzz --json
test-unit:
	$(call ring,$(call packages,!$(IS_NS) && !($(IS_VM))),$(UNIT_BUDGET),-race)
test-netns:
	$(call ring,$(call packages,$(IS_NS) && !($(IS_E2E)) && !($(IS_VM))),$(NETNS_BUDGET),-race -count=1)
test-e2e:
	$(call ring,$(E2E),$(E2E_BUDGET),-count=1)
# Guests with Debian's kernels, which come first, with a word on standard error,
# as go test would keep it to itself. What cannot be had the tests name.
test-vm: deps-vm
	@go run ./scripts/vm/fetch
	$(call ring,$(VM),$(VM_BUDGET),-count=1)

# The backends beside perftest's programs, in a guest.
.PHONY: bench-vm
bench-vm: deps-vm
	@go run ./scripts/vm/fetch
	go test -count=1 -v -tags=bench -timeout=$(VM_BUDGET) -run='^TestCompare$$' ./scripts/vm

.PHONY: fuzz
fuzz:
	@scripts/fuzz

.PHONY: bench
bench:
	go test -run='^$$' -bench=. -benchmem ./...

.PHONY: demo
demo: deps build
	@scripts/demo $(DEMO_MTUS)

# Run in its folder, go test shows what it says at once.
.PHONY: faults
faults: deps
	@cd scripts/e2e && go test -count=1 -timeout=1h -run='^(TestFaults|TestKilledInAnyRung|TestR10StormUnderTraffic)$$' -faults.each=$(FAULTS_EACH) -storm.length=40s

# The long forms: fuzzing, every fault, and minutes of attacks and traffic. Each part
# runs even if another one fails, and prints its progress.
.PHONY: soak
soak:
	@$(MAKE) --no-print-directory --keep-going fuzz faults soak-e2e

.PHONY: soak-e2e
soak-e2e: deps
	@cd scripts/e2e && go test -count=1 -v -timeout=$(SOAK_BUDGET) -soak -skip='^(TestFaults|TestKilledInAnyRung|TestR10StormUnderTraffic)$$'

# Progress comes as it is, the table at the end; one patch: go run ./scripts/mutants -run R06.
.PHONY: mutants
mutants: deps
	@go run ./scripts/mutants

.PHONY: lint fmt
lint:
	$(LINT) run ./...
fmt:
	$(LINT) fmt ./...

# The page is compared with the tree by a test.
.PHONY: requirements
requirements:
	go run ./scripts/requirements -w

.PHONY: clean
clean:
	rm -rf bin
