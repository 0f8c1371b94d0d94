package offline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// ruleChanges are the fields of a rule, and then those of its limits, that are not equal. An empty rule stands for one
// that is not there.
func ruleChanges(before, after *descriptors.Rule) []FieldChange {
	about := []string{"path", "source", "limits", "description", "owner"}
	all := differ(fieldsOf(before, about...), fieldsOf(after, about...))
	isOnly := len(before.Limits) <= 1 && len(after.Limits) <= 1
	old, now := byLabel(before.Limits, isOnly), byLabel(after.Limits, isOnly)
	labels := maps.Clone(old)
	maps.Copy(labels, now)
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		for _, f := range limitChanges(old[label], now[label]) {
			f.Field = label + f.Field
			all = append(all, f)
		}
	}
	return all
}

// byLabel are limits by what begins the names of their fields: nothing for the only limit, else the limit's name, or
// algorithm and window.
func byLabel(limits []*descriptors.Limit, isOnly bool) map[string]*descriptors.Limit {
	all := map[string]*descriptors.Limit{}
	for i, l := range limits {
		label := cmp.Or(l.Name, fmt.Sprintf("%s per %s", l.Policy.Algorithm(), descriptors.FormatDuration(l.Policy.Window())))
		switch {
		case isOnly:
			label = ""
		case all[label+": "] != nil:
			label += " #" + strconv.Itoa(i+1) + ": "
		default:
			label += ": "
		}
		all[label] = l
	}
	return all
}

// limitChanges are the fields that differ, and whether the counter starts again. A limit may be nil: not there.
func limitChanges(was, is *descriptors.Limit) (fields []FieldChange) {
	before, after := limitFields(was), limitFields(is)
	if was == nil || is == nil {
		return differ(before, after)
	}
	if was.Params().Limit == is.Params().Limit && was.Policy.Capacity() == is.Policy.Capacity() {
		delete(before, "burst") // whether the default is written does not matter
		delete(after, "burst")
	}
	fields = differ(before, after)
	if len(fields) == 0 && !slices.Equal(was.Policy.Core().Args(), is.Policy.Core().Args()) {
		fields = []FieldChange{{"parameters", fmt.Sprint(was.Policy.Core().Args()), fmt.Sprint(is.Policy.Core().Args())}}
	}
	if !was.SameCounters(is) {
		fields = append(fields, FieldChange{"counter", "as it was", "another: what was used is forgotten"})
	}
	return fields
}

// limitFields are what a limit says, by the names that rule files have for it, with defaults that depend on nothing.
func limitFields(l *descriptors.Limit) map[string]string {
	if l == nil {
		return nil
	}
	fields := fieldsOf(l, "id", "unit", "unit_multiplier", "capacity") // of which other fields say the same
	params := l.Params()
	if l.Policy.Algorithm() == limiter.SlidingWindow && params.Segments == 0 {
		fields["segments"] = "10" // as NewPolicy has it
	}
	if params.Burst != 0 {
		fields["burst"] = strconv.FormatInt(params.Burst, 10)
	}
	if params.BurstFor != 0 {
		fields["burst_seconds"] = strconv.FormatFloat(params.BurstFor.Seconds(), 'f', -1, 64)
	}
	if l.Policy.Algorithm().CountsInFlight() {
		fields["lease"] = fields["window"]
		delete(fields, "window")
	}
	return fields
}
