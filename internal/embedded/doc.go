// Package embedded is Weir inside Envoy, without Envoy: it reads the configuration of the dynamic module, makes
// descriptors of a request, has internal/decide decide it, and says what the filter is to do. Package main in
// cmd/envoymodule joins it to Envoy's ABI.
//
// A Module has one Instance for each set of flags. Each filter_config is a Filter of an Instance, each route's own
// configuration a Route. A request is a Call: it is decided at once, or later without keeping Envoy's worker waiting.
package embedded
