// Command weir is Weir, a rate limit service for Envoy. It equals cmd/sidecar under the name that go install uses.
package main

import (
	"os"

	"github.com/weir-ratelimit/weir/internal/cli"
)

// Set by `go build -ldflags "-X main.version=v1.2.3 -X main.commit=..."`, for builds without a repository.
var version, commit string

func main() { os.Exit(cli.Main(version, commit)) }
