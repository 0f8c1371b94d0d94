package admin

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Bounds of a page of rules.
const (
	defaultListed = 50
	maxListed     = 1000
)

// listedRule is a rule in the response of GET /rules.
type listedRule struct {
	Domain      string        `json:"domain"`
	Path        string        `json:"path"`
	Source      string        `json:"source"` // file:line
	Mode        string        `json:"mode"`   // enforce, shadow or quota
	Unlimited   bool          `json:"unlimited,omitempty"`
	Owner       string        `json:"owner,omitempty"`
	Description string        `json:"description,omitempty"`
	Limits      []listedLimit `json:"limits"`
	// Rule is the compiled rule.
	Rule *descriptors.Rule `json:"rule"`
}

// rulesPage is the response of GET /rules.
type rulesPage struct {
	Status adminapi.RulesSummary `json:"status"`
	Found  int                   `json:"found"`
	Offset int                   `json:"offset"`
	Rules  []listedRule          `json:"rules"`
}

// listedLimit is a limit as text, with its counts.
type listedLimit struct {
	Name string `json:"name,omitempty"`
	Text string `json:"text"`
	// Decisions are the counts by outcome, without zeros, including requests that Envoys decided by quotas. It is nil if
	// the limit has no counts of its own.
	Decisions map[string]uint64 `json:"decisions"`
	// Reservation is left out for a limit without a reservation, or without counts of its own.
	Reservation *adminapi.ReservationCounts `json:"reservation,omitempty"`
	// LastHour has the limit's counts over time, if requested and not empty.
	LastHour *adminapi.CountsOverTime `json:"last_hour,omitempty"`
}

// rules serves GET /rules?domain=&rule=PATH&search=&sort=denied|requests&offset=0&n=50&history=true: the state of the
// rules, and one page of the active rules, in the order of the files or of sort.
func (h *handler) rules(r *http.Request) (*rulesPage, error) {
	query := r.URL.Query()
	n, err := number(query, "n", defaultListed, 1, maxListed)
	if err != nil {
		return nil, err
	}
	offset, err := number(query, "offset", 0, 0, 1<<31-1)
	if err != nil {
		return nil, err
	}
	found, err := h.findRules(query)
	if err != nil {
		return nil, err
	}
	switch by := query.Get("sort"); by {
	case "":
	case "denied", "requests":
		h.sortRules(found, by == "denied")
	default:
		return nil, invalid("sort: must be denied or requests, or left out; got %q", by)
	}
	page := &rulesPage{Status: h.rulesSummary(), Found: len(found), Offset: offset, Rules: []listedRule{}}
	from := min(offset, len(found))
	for _, r := range found[from:min(from+n, len(found))] {
		page.Rules = append(page.Rules, h.list(r, query.Has("history")))
	}
	return page, nil
}

// findRules returns the active rules that a query selects: a rule by its path, or rules that contain all words of the
// search, in any case.
func (h *handler) findRules(query url.Values) (found []*descriptors.Rule, err error) {
	set := h.Rules.Set()
	if path := query.Get("rule"); path != "" {
		rule, err := findRule(set, query.Get("domain"), path)
		return []*descriptors.Rule{rule}, err
	}
	domains := []*descriptors.Domain{}
	if name := query.Get("domain"); name != "" {
		d, err := findDomain(set, name)
		if err != nil {
			return nil, err
		}
		domains = append(domains, d)
	} else if set != nil {
		domains = set.Domains()
	}
	sought := strings.Fields(strings.ToLower(query.Get("search")))
	for _, d := range domains {
		for _, r := range d.Rules() {
			if len(sought) == 0 || hasAll(r, sought) {
				found = append(found, r)
			}
		}
	}
	return found, nil
}

func hasAll(r *descriptors.Rule, sought []string) bool {
	texts := []string{r.Domain, r.Path, r.Source, r.Owner, r.Description}
	for _, l := range r.Limits {
		texts = append(texts, l.Name, l.Policy.Algorithm().String())
	}
	text := strings.ToLower(strings.Join(texts, "\n"))
	return !slices.ContainsFunc(sought, func(word string) bool { return !strings.Contains(text, word) })
}

// sortRules sorts by denied or by all decisions, in descending order. The sort is stable.
func (h *handler) sortRules(rules []*descriptors.Rule, denied bool) {
	counts := make(map[*descriptors.Rule]uint64, len(rules))
	for _, r := range rules {
		for _, l := range r.Limits {
			var n uint64
			for o, count := range h.Decisions(l) {
				if !denied || decide.Outcome(o).Unfit() {
					n += count
				}
			}
			counts[r] = max(counts[r], n)
		}
	}
	slices.SortStableFunc(rules, func(a, b *descriptors.Rule) int { return cmp.Compare(counts[b], counts[a]) })
}

// list returns a listed rule, with the last hour of its limits if withHistory is set.
func (h *handler) list(r *descriptors.Rule, withHistory bool) listedRule {
	shown := listedRule{
		Domain: r.Domain, Path: r.Path, Source: r.Source, Mode: r.Mode.String(), Unlimited: r.Unlimited,
		Owner: r.Owner, Description: r.Description, Limits: []listedLimit{}, Rule: r,
	}
	for _, l := range r.Limits {
		limit := listedLimit{Name: l.Name, Text: l.String()}
		if counts := h.Decisions(l); counts != nil {
			limit.Decisions = byName(counts)
			limit.Reservation = h.Reservation(l)
		}
		if withHistory && h.History != nil {
			limit.LastHour = h.History.Of(adminapi.NameOf(l))
		}
		shown.Limits = append(shown.Limits, limit)
	}
	return shown
}

// byName returns the non-zero counts by outcome.
func byName(counts []uint64) map[string]uint64 {
	all := map[string]uint64{}
	for o, n := range counts {
		if n > 0 {
			all[decide.Outcome(o).String()] = n
		}
	}
	return all
}
