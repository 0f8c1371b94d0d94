package telemetry

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

const samplerVariable = "OTEL_TRACES_SAMPLER"

// samplers are the values that OpenTelemetry defines for samplerVariable.
var samplers = []string{
	"always_on", "always_off", "traceidratio",
	"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
}

// value returns an environment variable without white space around it.
func value(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// checkEnvironment refuses values that OpenTelemetry would replace by a default: a misspelt sampler, for example, would
// trace all requests.
func checkEnvironment(isHTTP bool) error {
	var errs []error
	wanted, port := "grpc", "gRPC port, usually 4317"
	if isHTTP {
		wanted, port = "http/protobuf", "HTTP port, usually 4318"
	}
	for _, signal := range []string{"", "TRACES_", "METRICS_"} {
		protocol := "OTEL_EXPORTER_OTLP_" + signal + "PROTOCOL"
		if p := value(protocol); p != "" && p != wanted {
			errs = append(errs, fmt.Errorf(
				"%s: must be %s, as --otel-protocol says, got %q; send to the collector's %s", protocol, wanted, p, port))
		}
		endpoint := "OTEL_EXPORTER_OTLP_" + signal + "ENDPOINT"
		u, err := url.Parse(value(endpoint))
		if value(endpoint) != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			// The value may hold a secret.
			errs = append(errs, fmt.Errorf("%s: must be http://HOST:PORT, or https:// for TLS", endpoint))
		}
	}
	return errors.Join(append(errs, checkSampler())...)
}

func checkSampler() error {
	sampler := strings.ToLower(value(samplerVariable))
	if sampler == "" {
		return nil
	}
	if !slices.Contains(samplers, sampler) {
		return fmt.Errorf("%s: must be one of %s, got %q", samplerVariable, strings.Join(samplers, ", "), sampler)
	}
	const argument = samplerVariable + "_ARG"
	if !strings.HasSuffix(sampler, "traceidratio") || value(argument) == "" {
		return nil
	}
	if share, err := strconv.ParseFloat(value(argument), 64); err != nil || !(share >= 0 && share <= 1) {
		return fmt.Errorf("%s: must be between 0 and 1, the share of requests to trace, got %q", argument, value(argument))
	}
	return nil
}
