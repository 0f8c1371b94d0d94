package app

import (
	"context"
	"errors"
	"net/url"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/explain"
	"github.com/weir-ratelimit/weir/internal/rules"
)

// explainer answers by the live rules and counters.
type explainer struct {
	rules   *rules.Rules
	decider *decide.Decider
}

// Explain implements admin.Explainer.
func (e explainer) Explain(ctx context.Context, query url.Values) (any, error) {
	q, err := explain.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	set := e.rules.Set()
	if set == nil {
		return nil, errors.New("no rules are loaded yet; GET /rules says what is wrong with the files")
	}
	return explain.Ask(ctx, e.decider, set, q)
}
