// Command metricsdoc writes the tables of docs/reference/metrics.md from what Weir registers: `make docs`.
package main

import (
	"fmt"
	"os"

	"github.com/weir-ratelimit/weir/internal/metrics"
)

const path = "docs/reference/metrics.md"

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
}

func write() error {
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	after, err := metrics.Document(string(before))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(after), 0o644) //nolint:gosec // a document
}
