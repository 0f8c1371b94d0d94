//go:build e2e

package envoymodule

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"testing"
)

// Envoy Gateway 1.9.1 makes another configuration of an EnvoyExtensionPolicy than a user writes: the module is a file,
// filter_config a text of JSON, and the filter is off but on the routes of the policy.
func TestAsEnvoyGatewayConfiguresIt(t *testing.T) {
	text, err := json.Marshal(config([]string{rules(t, shop)}, byKey))
	if err != nil {
		t.Fatal(err)
	}
	const name = "envoy.filters.http.dynamic_modules/weir"
	filter := `{name: ` + name + `, disabled: true, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter,
  dynamic_module_config: {do_not_close: true, module: {local: {filename: "` +
		filepath.Join(moduleFolder(t), "libweir.so") + `"}}},
  filter_name: weir,
  filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: ` + string(text) + `}}}`
	e := start(t, listener("front", []string{filter}, `{match: {prefix: /limited}, route: {cluster: upstream},
  typed_per_filter_config: {`+name+`: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig,
    config: {}}}}, `+toUpstream))
	c := newClient(t, e, "front")
	for path, want := range map[string]int{"/limited": http.StatusTooManyRequests, "/": http.StatusOK} {
		if r := c.Get(t, path, "x-key", "teapot"); r.Status != want {
			t.Errorf("%s: status %d, want %d", path, r.Status, want)
		}
	}
}
