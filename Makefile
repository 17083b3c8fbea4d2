# The two main commands: `make demo` shows two hosts that talk over ib0, and `make test`
# runs every test. Both install the Debian packages that they need.

SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := build

# Budgets: how long each ring of tests may take, including its compilation. The first run
# on a machine also compiles the linters.
TIDY_BUDGET  ?= 2m
LINT_BUDGET  ?= 10m
UNIT_BUDGET  ?= 16m
NETNS_BUDGET ?= 6m
E2E_BUDGET   ?= 26m
DEB_BUDGET   ?= 10m
VM_BUDGET    ?= 44m
SM_BUDGET    ?= 4m
K8S_BUDGET   ?= 5m
DOCKER_BUDGET ?= 8m
SOAK_BUDGET  ?= 3h

# FUZZTIME: how often each fuzz target is executed. (A duration, such as 5m, sometimes
# fails with "context deadline exceeded", go.dev/issue/75804.) DEMO_MTUS: the underlay
# MTUs of the demo. FAULTS_EACH: how often `make faults` injects each fault.
FUZZTIME    ?= 1000000x
DEMO_MTUS   ?= 1500 9000
FAULTS_EACH ?= 10

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ipoibd
export GOCACHE             := $(CACHE)/go-build
export GOLANGCI_LINT_CACHE := $(CACHE)/golangci-lint
export FUZZTIME
# The version is set by -ldflags: Go's own stamp requires a checkout that git trusts. Without paths in what is compiled, a
# checkout in another folder finds it in the cache.
export GOFLAGS := $(GOFLAGS) -buildvcs=false -trimpath
# By default the race detector keeps each process for a second at its end. Every test with namespaces is a process.
export GORACE := $(GORACE) atexit_sleep_ms=0

VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LINT    := go tool -modfile=tools/go.mod golangci-lint
TESTSUM := go tool -modfile=tools/go.mod gotestsum --format=pkgname-and-test-fails --raw-command --ignore-non-json-output-lines

# At least one test must have run and, in CI, none may have been skipped.
COUNTS := sh -c "[ \$$TESTS_TOTAL -gt 0 ] || { echo no test ran; exit 1; }$(if $(filter true,$(CI)),; \
	[ \$$TESTS_SKIPPED -eq 0 ] || { echo \$$TESTS_SKIPPED tests were skipped; exit 1; })"

# SIGQUIT makes a Go program print the stack of each goroutine, and so where it hangs.
LIMIT := timeout --signal=QUIT --kill-after=10s

# ring runs the tests of packages as JSON: $(call ring,packages,budget,flags).
# The budget bounds each test binary and the ring as a whole. grep writes whole lines, because rings may run side by
# side. The linters run go vet.
ring = $(LIMIT) $(2) go test -json -vet=off -timeout=$(2) $(3) $(1) | grep --line-buffered ""

# check runs a command as if it were the tests of a package, so that its output is shown
# and its failure counted: $(call check,name,budget,command).
check = go tool test2json -t -p $(1) $(LIMIT) $(2) $(3)

# The namespace ring consists of the packages whose tests import nstest, so there is no
# list to maintain.
packages = $$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '$(1) {print $$1}')
E2E     := ipoibd/scripts/e2e
# The pure packages of scripts/imports.md that start no goroutine in tests either: the race detector would find nothing in
# them, and takes several times as long.
PURE    := $(shell for p in $$(sed -n 's/^| `\([^`]*\)` |.*: pure.*/\1/p' scripts/imports.md); do \
	grep -qsE '^[[:space:]]*go |\.Go\b' $$p/*.go || echo ipoibd/$$p; done)
IS_PURE := index(" $(PURE) ", " " $$1 " ")
IS_NS   := /linktest\/nstest/
IS_E2E  := $$1 == "$(E2E)"
DEB     := ipoibd/scripts/deb
IS_DEB  := $$1 == "$(DEB)"
IB      := ipoibd/scripts/vm/infiniband
RXE     := ipoibd/scripts/vm
IS_VM   := $$1 ~ /^ipoibd\/scripts\/vm(\/infiniband|\/arm64)?$$/
SM      := ipoibd/scripts/sm
IS_SM   := $$1 == "$(SM)"
IS_UNIT := !$(IS_NS) && !($(IS_VM)) && !($(IS_SM)) && !($(IS_DEB))
DAEMONS := ^TestDaemonsOnASubnet$$
# The longest simulations. With the race detector each would take five times as long; others run the same code under it.
LONGEST := ^(TestTenThousandPeers|TestHourOfBadNetwork)$$
IFACE   := ipoibd/cmd/ipoibd/internal/iface
IS_SIM  := $$1 == "$(IFACE)"
DOCKER  := ipoibd/scripts/docker
IS_DOCKER := $$1 == "$(DOCKER)"

# The packages that test-arm64 tests: those that only compute and are fast when emulated.
ARM64   := $(addprefix ./,hca hca/roce hca/checksum hca/segment hca/join hca/softqp ud/ipoib ud/vnet ud/port qprecovery/freeze)

.PHONY: build
build: ## compile bin/ipoibd
	go build -ldflags '-s -w -X main.commit=$(VERSION)' -o bin/ ./cmd/ipoibd

# Builds the images ipoibd and ipoibd:debian, with Docker or ENGINE=podman. BASE names the
# Debian image on which the second is based; ARCH=arm64 builds ipoibd:arm64.
.PHONY: image
image: ## build the container images
	@scripts/image/build

.PHONY: deps deps-bench deps-deb deps-vm deps-sm deps-docker
deps:
	@scripts/deps
deps-bench: deps
	@scripts/deps bench || echo "the benchmark will list the missing programs" >&2
deps-deb: deps
	@scripts/deps deb
deps-vm: deps
	@scripts/deps vm || echo "the tests with guests will report what is missing" >&2
deps-sm: deps
	@scripts/deps sm || echo "the tests with a subnet manager will report what is missing" >&2
deps-docker: deps
	@scripts/deps docker || echo "the tests with containers will report what is missing" >&2

# All rings run, even after a failure, and gotestsum counts them together. To run only
# some: make test RINGS="test-unit test-netns".
RINGS ?= test-tidy test-lint test-unit test-hosts test-sm test-vm
.PHONY: test
test: deps-vm deps-sm deps-docker ## every test, as root: what CI runs; 27 to 40 minutes
	@$(TESTSUM) --post-run-command='$(COUNTS)' -- $(MAKE) --no-print-directory --keep-going --silent $(RINGS)

# What a contributor needs before a commit: without root, network or tools other than Go's, within 3 minutes on a machine
# that has built ipoibd before. `make test` has the rest.
.PHONY: check
check: ## build, vet, format, and the short forms of the tests without root or network; 3 minutes
	go build -o /dev/null ./cmd/ipoibd
	go vet ./...
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run make fmt" >&2; exit 1; }
	go test -short $(call packages,!$(IS_NS) && !($(IS_VM)) && !($(IS_DEB)))

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | sort | expand -t14

.PHONY: test-tidy test-lint test-unit test-sim test-pure test-storm test-fuzz test-hosts test-netns test-e2e test-arm64 test-docker test-deb test-kubernetes test-sm test-lab test-daemons test-vm test-guests test-rxe test-infiniband
test-tidy:
	$(call check,go.mod,$(TIDY_BUDGET),bash -c 'go mod tidy -diff && go -C tools mod tidy -diff && go -C scripts/kubernetes mod tidy -diff')
test-lint:
	$(call check,golangci-lint,$(LINT_BUDGET),$(LINT) run ./...)
# The tests without root, network or real interfaces, except for those that only compute.
test-unit:
	$(call ring,$(call packages,$(IS_UNIT) && !($(IS_SIM)) && !($(IS_PURE))),$(UNIT_BUDGET),-race)
# What only computes, and has no limits of real time, takes what the guests leave of the processors, since these wait for a
# third of the time. The other rings would starve it for minutes.
IDLE := nice -n 19 chrt --idle 0
test-sim:
	$(IDLE) $(call ring,$(IFACE),$(VM_BUDGET),-race -skip='$(LONGEST)')
test-fuzz:
	$(call check,fuzz,$(VM_BUDGET),$(IDLE) env FUZZTIME=5000x scripts/fuzz)
test-pure:
	$(IDLE) $(call ring,$(call packages,$(IS_UNIT) && $(IS_PURE)),$(VM_BUDGET))
test-storm:
	$(IDLE) $(call ring,$(IFACE),$(VM_BUDGET),-count=1 -run='^TestR10Storm$$|$(LONGEST)')
# The rings with real interfaces and processes wait more than they compute, so they run four at a time: test-e2e, and the
# shorter ones.
test-hosts: deps-docker deps-deb
	$(MAKE) --jobs=4 test-e2e test-deb test-docker test-netns test-kubernetes
test-netns:
	$(call ring,$(call packages,$(IS_NS) && !($(IS_E2E)) && !($(IS_VM)) && !($(IS_DEB)) && !($(IS_DOCKER))),$(NETNS_BUDGET),-race -count=1)
# Those of its tests that do not measure run five at a time, since they wait most of the time.
test-e2e:
	$(call ring,$(E2E),$(E2E_BUDGET),-count=1 -parallel=5)
# The manifests, in a module of its own.
test-kubernetes:
	cd scripts/kubernetes && $(call ring,.,$(K8S_BUDGET),-count=1)
# The Debian package, on a machine with systemd.
test-deb: deps-deb
	$(call ring,$(DEB),$(DEB_BUDGET),-count=1)
# Emulated, because images are also built for arm64. The tests left out try millions of
# damages, run programs of this machine's processor, or compare with its kernel.
test-arm64: export GOARCH = arm64
test-arm64: export CGO_ENABLED = 0
test-arm64: deps-docker
	$(IDLE) $(call ring,$(ARM64),$(VM_BUDGET),-exec=qemu-aarch64-static -skip='^(TestDamage|TestWitness)|Kernel$$')
# Containers of Docker and Podman.
test-docker: deps-docker
	$(call ring,$(DOCKER),$(DOCKER_BUDGET),-count=1)
# OpenSM on a simulated InfiniBand switch: the lab itself, then three daemons in a guest. It runs by itself, because the
# limit of its time includes what runs beside it.
test-sm: test-lab test-daemons
test-lab: deps-vm deps-sm
	$(call ring,$(SM),$(SM_BUDGET),-race -count=1)
test-daemons: deps-vm deps-sm
	@go run ./scripts/vm/fetch 2>&1
	$(call ring,$(IB),$(SM_BUDGET),-count=1 -run='$(DAEMONS)')
# Guests with Debian's kernels. The kernels are fetched first, because go test would hide the progress of the download.
# Two guests run at a time: four on two processors exceed the limits of tests.
test-vm: deps-vm deps-sm deps-docker
	$(MAKE) --jobs=6 test-guests test-sim test-storm test-pure test-fuzz test-arm64
test-guests:
	status=0; for ring in test-rxe test-infiniband; do $(MAKE) $$ring || status=1; done; exit $$status
test-rxe: deps-vm
	@go run ./scripts/vm/fetch 2>&1
	$(call ring,$(RXE),$(VM_BUDGET),-count=1)
test-infiniband: deps-vm deps-sm
	@go run ./scripts/vm/fetch 2>&1
	$(call ring,$(IB) ipoibd/scripts/vm/arm64,$(VM_BUDGET),-count=1 -p=1 -skip='$(DAEMONS)')

# Compares the backends with perftest's programs, in a guest.
.PHONY: bench-vm
bench-vm: deps-vm ## compare both kinds of HCA with perftest in a guest
	@go run ./scripts/vm/fetch
	go test -count=1 -v -tags=bench -timeout=$(VM_BUDGET) -run='^TestCompare$$' ./scripts/vm

.PHONY: fuzz
fuzz: ## fuzz each target FUZZTIME times
	@scripts/fuzz

# Compares ipoibd with other overlays, side by side. Prints a table and writes bin/bench.json
# and bin/bench.svg. A short run: make bench BENCH="-only ipoibd -rounds 1 -seconds 1".
BENCH ?=
.PHONY: bench
bench: deps-bench build ## compare the speed with other overlays, as root; 20 minutes
	@go run ./scripts/bench $(BENCH)

# Compares the parts of the data path with their physical bounds. Prints a table and writes
# bin/bench-go.txt.
.PHONY: bench-go
bench-go: ## compare each part of the data path with its bound
	@scripts/bench-go

# Draws docs/top.svg: what `ipoibd top` shows under a storm of faults.
.PHONY: top-picture
top-picture: deps
	@scripts/deps picture
	mkdir -p bin
	cd scripts/e2e && go test -count=1 -run='^TestTopUnderAFaultStorm$$' -top.record=$(CURDIR)/bin/top.cast
	rm -rf bin/top && termtosvg render bin/top.cast bin/top --still-frames -t gjm8
	sed 's/<text /<text xml:space="preserve" /g' "$$(ls bin/top/*.svg | tail -n 2 | head -n 1)" >docs/top.svg

.PHONY: demo
demo: deps build ## two hosts that talk over ib0, as root; a minute
	@scripts/demo $(DEMO_MTUS)

# go test shows its output at once only when it runs in the folder of the package. E2E_FLAGS=-fast-path gives the daemons a
# fast path, also in soak-e2e.
.PHONY: faults
faults: deps ## inject each fault FAULTS_EACH times and print the costs, as root
	@cd scripts/e2e && go test -count=1 -timeout=1h -run='^(TestFaults|TestKilledInAnyRung|TestR10FaultsInBulkTraffic|TestR10StormUnderTraffic)$$' -faults.each=$(FAULTS_EACH) -storm.length=40s $(E2E_FLAGS)

# The long forms: fuzzing, every fault, and minutes of attacks and traffic. Each part
# runs even if another fails, and prints its progress.
.PHONY: soak
soak: ## the long forms of the tests, as root; hours
	@$(MAKE) --no-print-directory --keep-going fuzz faults soak-storm soak-bpf soak-e2e soak-docker soak-deb soak-vm

.PHONY: soak-storm
soak-storm:
	@go test $(IFACE) -count=1 -v -timeout=$(SOAK_BUDGET) -run='^TestR10Storm$$' -storm.random=1000

.PHONY: soak-bpf
soak-bpf:
	@go test ./bpf -count=1 -v -timeout=$(SOAK_BUDGET) -run='^TestFastPathAcceptsNoMoreThanCodec$$' -packets=5000000

.PHONY: soak-e2e
soak-e2e: deps
	@cd scripts/e2e && go test -count=1 -v -timeout=$(SOAK_BUDGET) -soak $(E2E_FLAGS) -skip='^(TestFaults|TestKilledInAnyRung|TestR10FaultsInBulkTraffic|TestR10StormUnderTraffic)$$'

.PHONY: soak-deb
soak-deb: deps-deb
	@cd scripts/deb && go test -count=1 -v -timeout=$(SOAK_BUDGET) -soak -run='^TestReproducible$$'

.PHONY: soak-docker
soak-docker: deps-docker
	@cd scripts/docker && go test -count=1 -v -timeout=$(SOAK_BUDGET) -soak

# All tests with guests of this architecture, each on every kernel.
.PHONY: soak-vm
soak-vm: deps-vm deps-sm
	@go run ./scripts/vm/fetch
	@go test -count=1 -v -p=1 -timeout=$(SOAK_BUDGET) ./scripts/vm ./scripts/vm/infiniband -soak

# To run only the patches of one requirement: go run ./scripts/mutants -run R06.
.PHONY: mutants
mutants: deps ## break requirements on purpose, to check that tests notice
	@go run ./scripts/mutants

.PHONY: lint fmt
lint: ## run the linters
	$(LINT) run ./...
fmt: ## format the code
	$(LINT) fmt ./...

# Compiles the eBPF programs. A test compares the result with the committed files.
.PHONY: generate
generate: deps ## compile the eBPF programs
	go generate ./bpf

# Rewrites qprecovery/README.md, which a test compares with the tree.
.PHONY: requirements
requirements:
	go test ./scripts -count=1 -run=^TestRequirements$$ -update

# Rewrites the tables of docs/config.md, except for the conditions in their last column, and then docs/man from the
# commands and docs/config.md. A test compares all of them. One run is enough if the conditions are written before it.
.PHONY: man
man: ## rewrite docs/man and the tables of docs/config.md
	go test ./cmd/ipoibd -count=1 -run=^TestManPages$$ -update

# Builds the Debian package, in bin.
.PHONY: deb
deb: deps-deb ## build the Debian package
	@scripts/deb/build bin

.PHONY: clean
clean: ## delete what was built
	rm -rf bin
