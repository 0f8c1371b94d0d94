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

// samplers are the values that OpenTelemetry defines.
var samplers = []string{
	"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
}

func isSet(name string) bool { return strings.TrimSpace(os.Getenv(name)) != "" }

// checkEnvironment refuses what OpenTelemetry would replace by a default: tracing all requests, say, because of a
// misspelt sampler.
func checkEnvironment() error {
	var errs []error
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"} {
		if p := strings.TrimSpace(os.Getenv(name)); p != "" && p != "grpc" {
			errs = append(errs, fmt.Errorf("%s: must be grpc, got %q; send to the collector's gRPC port, which is 4317 as a rule", name, p))
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"} {
		if !isSet(name) {
			continue
		}
		u, err := url.Parse(strings.TrimSpace(os.Getenv(name)))
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("%s: must be http://HOST:PORT, or https:// for TLS", name)) // it may hold a secret
		}
	}
	return errors.Join(append(errs, checkSampler())...)
}

func checkSampler() error {
	if !isSet(samplerVariable) {
		return nil
	}
	sampler := strings.ToLower(strings.TrimSpace(os.Getenv(samplerVariable)))
	if !slices.Contains(samplers, sampler) {
		return fmt.Errorf("%s: must be one of %s, got %q", samplerVariable, strings.Join(samplers, ", "), sampler)
	}
	const argument = samplerVariable + "_ARG"
	if !strings.HasSuffix(sampler, "traceidratio") || !isSet(argument) {
		return nil
	}
	if share, err := strconv.ParseFloat(strings.TrimSpace(os.Getenv(argument)), 64); err != nil || !(share >= 0 && share <= 1) {
		return fmt.Errorf("%s: must be between 0 and 1, the share of requests to trace, got %q", argument, os.Getenv(argument))
	}
	return nil
}
