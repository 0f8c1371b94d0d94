package actions

import (
	"errors"
	"fmt"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// checkLimit checks an entry of rate_limits against Envoy's bounds and for fields that Weir does not support.
func checkLimit(at string, rl *routev3.RateLimit) error {
	if err := rl.Validate(); err != nil {
		return violation(at, err)
	}
	switch {
	case rl.GetStage().GetValue() != 0:
		return refuse(at+".stage", fmt.Sprintf("stage %d", rl.GetStage().GetValue()),
			"every entry applies at once; leave stage out, and write here only the entries of the stage that you want")
	case rl.GetDisableKey() != "":
		return refuse(at+".disable_key", "a runtime key", "Weir does not read Envoy's runtime; leave disable_key out")
	}
	return nil
}

// violation converts an error of a generated Validate to one with the field's path in the configuration.
func violation(at string, err error) error {
	for {
		var v interface {
			error
			Field() string
			Reason() string
			Cause() error
		}
		if !errors.As(err, &v) {
			return fmt.Errorf("%s: %w", at, err)
		}
		at += "." + snake(v.Field())
		if v.Cause() == nil {
			return fmt.Errorf("%s: %s", at, v.Reason())
		}
		err = v.Cause()
	}
}

// snake returns the name of a Go field in a configuration, such as header_name for HeaderName.
func snake(field string) string {
	var b strings.Builder
	for i, r := range field {
		if 'A' <= r && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
