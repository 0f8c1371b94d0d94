package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// Names of the fronts with Weir inside Envoy.
const (
	nameModuleMemory = "module-memory"
	nameModuleRedis  = "module-redis"
)

// startModules returns a front for each kind of store of Weir inside Envoy, and starts the required targets. The caller
// must stop the targets, even after an error.
func (o *options) startModules(ctx context.Context, dir string, w *workload) (fronts []*front, err error) {
	folder, err := filepath.Abs(filepath.Dir(o.module))
	if err != nil {
		return nil, err
	}
	s := &starter{dir: dir}
	for _, name := range []string{nameModuleMemory, nameModuleRedis} {
		t := &target{name: name}
		f := &front{name: name, service: t, modules: folder}
		fronts = append(fronts, f)
		store := "memory"
		if name == nameModuleRedis {
			if store, err = s.startRedis(ctx, t, "unix"); err != nil {
				return fronts, err
			}
		}
		admin, err := launch.FreeAddr(ctx)
		if err != nil {
			return fronts, err
		}
		rules := filepath.Join(dir, "rules-"+name+".yaml")
		text := w.ruleFile("algorithm: " + o.Algorithm + ", on_store_failure: deny")
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			return fronts, err
		}
		if f.filter, err = moduleFilter(w.name, "--rules="+rules, "--store="+store, "--http-addr="+admin,
			"--store-timeout="+o.storeTimeout.String()); err != nil {
			return fronts, err
		}
	}
	return fronts, nil
}

// moduleFilter returns the filter of Weir inside Envoy, in one line. It fails closed, as in asking.
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
