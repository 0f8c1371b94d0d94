package app

import (
	"fmt"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decisionlog"
)

// watchers are what is shown every request that was decided.
func (a *App) watchers() ([]decide.Watcher, error) {
	all := a.sends.Watchers()
	if a.top != nil {
		all = append(all, a.top)
	}
	if a.o.DecisionLog != "" {
		if err := a.openDecisionLog(); err != nil {
			return nil, err
		}
		all = append(all, a.log)
	}
	return all, nil
}

func (a *App) openDecisionLog() error {
	var key []byte
	if file := a.o.DecisionLogKeyFile; file != "" {
		var err error
		if key, err = decisionlog.ReadKey(file); err != nil {
			return fmt.Errorf("--decision-log-key-file: %w", err)
		}
	}
	log, err := decisionlog.New(decisionlog.Options{
		To: a.o.DecisionLog, Sample: a.o.DecisionLogSample, SampleDenied: a.o.DecisionLogSampleDenied, Rate: a.o.DecisionLogRate,
		Values: decisionlog.Values(a.o.DecisionLogValues), Key: key, Log: a.o.Log,
	})
	if err != nil {
		return err
	}
	a.log = log
	a.metrics.DecisionLog.From(log.Stats)
	return nil
}
