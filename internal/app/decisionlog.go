package app

import (
	"fmt"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decisionlog"
)

// checkDecisionLog checks the options of a log that is asked for.
func (o *Options) checkDecisionLog(c *checker) {
	share := func(flag string, v float64) {
		c.check(v >= 0 && v <= 1, flag, "must be a share from 0 to 1, got %g", v)
	}
	share("--decision-log-sample", o.DecisionLogSample)
	share("--decision-log-sample-denied", o.DecisionLogSampleDenied)
	c.count("--decision-log-rate", o.DecisionLogRate, 1, 1_000_000)
	_, err := decisionlog.ParseValues(o.DecisionLogValues)
	c.check(err == nil, "--decision-log-values", "%v", err)
}

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
