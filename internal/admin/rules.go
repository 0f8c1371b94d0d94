package admin

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// rulesChunk is how much of the rules is in memory at once, in bytes.
const rulesChunk = 32 << 10

// rules answers GET /rules: the state of the last load, and all rules.
func (h *handler) rules(w http.ResponseWriter, _ *http.Request) {
	set := h.Rules.Set()
	status, err := json.MarshalIndent(h.Rules.Status(), "", "  ")
	if err != nil {
		writeError(w, err)
		return
	}
	header(w, http.StatusOK, "application/json")
	b := bufio.NewWriterSize(w, rulesChunk)
	_, _ = words.Plain{Writer: b}.Write(bytes.TrimSuffix(status, []byte("\n}"))) // b keeps the error
	_, _ = b.WriteString(",\n  \"rules\": ")
	if set == nil {
		_, _ = b.WriteString("null")
	} else if set.WriteJSON(b, "  ") != nil {
		return // the client has gone, or reads too slowly: it sees that the end is missing
	}
	_, _ = b.WriteString("\n}\n")
	_ = b.Flush()
}

// Bounds of a page of rules.
const (
	defaultListed = 50
	maxListed     = 1000
)

// listedRule is a rule for people, with what became of its requests.
type listedRule struct {
	Domain      string        `json:"domain"`
	Path        string        `json:"path"`
	Source      string        `json:"source"` // file:line
	Mode        string        `json:"mode"`   // enforce, shadow or quota
	Unlimited   bool          `json:"unlimited,omitempty"`
	Owner       string        `json:"owner,omitempty"`
	Description string        `json:"description,omitempty"`
	Limits      []listedLimit `json:"limits"`
}

// listedLimit is a limit in words.
type listedLimit struct {
	Name string `json:"name,omitempty"`
	Text string `json:"text"`
	// Decisions are by outcome, those that have happened; nil where they are not counted for this limit alone.
	Decisions map[string]uint64 `json:"decisions"`
	// ByEnvoys are those of requests that Envoys decided by quotas. Decisions does not have them.
	ByEnvoys map[string]uint64 `json:"decisions_by_envoys,omitempty"`
	// LastHour is the limit's counts over time, if the query asks for them and there are any.
	LastHour *adminapi.CountsOverTime `json:"last_hour,omitempty"`
}

// listRules answers GET /rules/list?search=&sort=denied|asked&offset=0&n=50&history=true: the rules one page at a time,
// as rule files have them or the most first.
func (h *handler) listRules(r *http.Request) (any, error) {
	query := r.URL.Query()
	n, err := number(query, "n", defaultListed, 1, maxListed)
	if err != nil {
		return nil, err
	}
	offset, err := number(query, "offset", 0, 0, 1<<31-1)
	if err != nil {
		return nil, err
	}
	found := h.findRules(query.Get("search"))
	switch by := query.Get("sort"); by {
	case "":
	case "denied", "asked":
		h.sortRules(found, by == "denied")
	default:
		return nil, invalid("sort: must be denied or asked, or left out; got %q", by)
	}
	answer := struct {
		Found  int          `json:"found"`
		Offset int          `json:"offset"`
		Rules  []listedRule `json:"rules"`
	}{Found: len(found), Offset: offset, Rules: []listedRule{}}
	from := min(offset, len(found))
	for _, r := range found[from:min(from+n, len(found))] {
		answer.Rules = append(answer.Rules, h.list(r, query.Has("history")))
	}
	return answer, nil
}

// findRules are the live rules with all words of the search somewhere, in whatever case.
func (h *handler) findRules(search string) (found []*descriptors.Rule) {
	set := h.Rules.Set()
	if set == nil {
		return nil
	}
	sought := strings.Fields(strings.ToLower(search))
	for _, d := range set.Domains() {
		for _, r := range d.Rules() {
			if len(sought) == 0 || hasAll(r, sought) {
				found = append(found, r)
			}
		}
	}
	return found
}

func hasAll(r *descriptors.Rule, sought []string) bool {
	texts := []string{r.Domain, r.Path, r.Source, r.Owner, r.Description}
	for _, l := range r.Limits {
		texts = append(texts, l.Name, l.Policy.Algorithm().String())
	}
	text := strings.ToLower(strings.Join(texts, "\n"))
	return !slices.ContainsFunc(sought, func(word string) bool { return !strings.Contains(text, word) })
}

// sortRules puts those first that were asked, or that denied, the most. Others keep their order.
func (h *handler) sortRules(rules []*descriptors.Rule, denied bool) {
	counts := make(map[*descriptors.Rule]uint64, len(rules))
	for _, r := range rules {
		for _, l := range r.Limits {
			var n uint64
			here, byEnvoys := h.Decisions(l)
			for _, counted := range [][]uint64{here, byEnvoys} {
				for o, count := range counted {
					if !denied || decide.Outcome(o).Unfit() {
						n += count
					}
				}
			}
			counts[r] = max(counts[r], n)
		}
	}
	slices.SortStableFunc(rules, func(a, b *descriptors.Rule) int { return cmp.Compare(counts[b], counts[a]) })
}

// shownRule is the answer of GET /rules/get.
type shownRule struct {
	listedRule

	// Rule is as GET /rules has it.
	Rule *descriptors.Rule `json:"rule"`
}

// getRule answers GET /rules/get?domain=&rule=&history=true: one rule, by its path.
func (h *handler) getRule(r *http.Request) (*shownRule, error) {
	query := r.URL.Query()
	rule, err := findRule(h.Rules.Set(), query.Get("domain"), query.Get("rule"))
	if err != nil {
		return nil, err
	}
	return &shownRule{listedRule: h.list(rule, query.Has("history")), Rule: rule}, nil
}

// list returns a rule for people, with the last hour of its limits if withHistory is set.
func (h *handler) list(r *descriptors.Rule, withHistory bool) listedRule {
	shown := listedRule{
		Domain: r.Domain, Path: r.Path, Source: r.Source, Mode: r.Mode.String(), Unlimited: r.Unlimited,
		Owner: r.Owner, Description: r.Description, Limits: []listedLimit{},
	}
	for _, l := range r.Limits {
		limit := listedLimit{Name: l.Name, Text: l.String()}
		if here, byEnvoys := h.Decisions(l); here != nil {
			limit.Decisions, limit.ByEnvoys = byName(here), byName(byEnvoys)
		}
		if withHistory && h.History != nil {
			limit.LastHour = h.History.Of(adminapi.NameOf(l))
		}
		shown.Limits = append(shown.Limits, limit)
	}
	return shown
}

// byName are the outcomes that have happened.
func byName(counts []uint64) map[string]uint64 {
	all := map[string]uint64{}
	for o, n := range counts {
		if n > 0 {
			all[decide.Outcome(o).String()] = n
		}
	}
	return all
}
