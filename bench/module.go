package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// moduleFile is the file name of Weir as a dynamic module: Envoy finds the module "weir" by it.
const moduleFile = "libweir.so"

// Names of the fronts with Weir inside Envoy.
const (
	nameModuleMemory = "module-memory"
	nameModuleRedis  = "module-redis"
)

// startModules returns a front for each way in which Weir inside Envoy keeps counters, and starts what they need. The
// caller stops the targets, also those that come with an error.
func (o *options) startModules(ctx context.Context, dir string, w *workload) (fronts []*front, err error) {
	if filepath.Base(o.module) != moduleFile {
		return nil, fmt.Errorf("-module %s: the file must be named %s, or Envoy does not find it", o.module, moduleFile)
	}
	folder, err := filepath.Abs(filepath.Dir(o.module))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(o.module); err != nil {
		return nil, fmt.Errorf("-module: %w; make module builds it", err)
	}
	s := &starter{dir: dir}
	for _, name := range []string{nameModuleMemory, nameModuleRedis} {
		t := &target{name: name}
		f := &front{name: name, service: t, modules: folder}
		f.check = f.checkDecided
		fronts = append(fronts, f)
		store := "memory"
		if name == nameModuleRedis {
			if store, err = s.startRedis(ctx, t, "unix"); err != nil {
				return fronts, err
			}
		}
		if f.weir, err = launch.FreeAddr(ctx); err != nil {
			return fronts, err
		}
		rules := filepath.Join(dir, "rules-"+name+".yaml")
		text := w.ruleFile("algorithm: " + o.Algorithm + ", on_store_failure: deny")
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			return fronts, err
		}
		if f.filter, err = moduleFilter(w.name, "--rules="+rules, "--store="+store, "--http-addr="+f.weir,
			"--store-timeout="+o.storeTimeout.String()); err != nil {
			return fronts, err
		}
	}
	return fronts, nil
}

// moduleFilter is the filter of Weir inside Envoy, in one line. It never fails open, as that of asking.
func moduleFilter(domain string, flags ...string) (string, error) {
	config, err := json.Marshal(map[string]any{
		"domain": domain, "flags": flags, "failure_mode_deny": true,
		"rate_limits": []any{map[string]any{"actions": []any{map[string]any{
			"request_headers": map[string]string{"header_name": "x-key", "descriptor_key": ruleKey(0, 0)},
		}}}},
	})
	return `{name: weir, typed_config: {` +
		`"@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter, ` +
		`dynamic_module_config: {name: weir}, filter_name: weir, filter_config: ` +
		`{"@type": type.googleapis.com/google.protobuf.Struct, value: ` + string(config) + `}}}`, err
}

// admitted finds, among the metrics of Weir, how many requests it admitted, by domain.
var admitted = regexp.MustCompile(`(?m)^weir_requests_total\{[^}]*code="ok"[^}]*\} (\S+)$`)

// checkDecided is nil if Weir inside this front's Envoy has admitted all requests that were answered.
func (f *front) checkDecided(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	metrics, err := page(ctx, "http://"+f.weir+"/metrics")
	if err != nil {
		return err
	}
	var sum uint64
	for _, m := range admitted.FindAllSubmatch(metrics, -1) {
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return err
		}
		sum += uint64(n)
	}
	if sum != f.answered.Load() {
		return fmt.Errorf("of %d requests that Envoy answered, Weir in it admitted %d", f.answered.Load(), sum)
	}
	return nil
}

// page reads a page that answers with status 200.
func page(ctx context.Context, url string) ([]byte, error) {
	return pageBy(ctx, http.DefaultClient, url)
}

func pageBy(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}
