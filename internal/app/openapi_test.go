package app

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// openAPI is docs/reference/openapi.yaml.
type openAPI struct {
	Paths map[string]struct {
		Servers   []any
		Get, Post *operation
		Delete    *operation
	}
	Components struct {
		Responses map[string]documented
	}

	schemas *jsonschema.Compiler
	seen    map[string]bool // "GET /rules 200"
}

type operation struct{ Responses map[string]documented }

// documented is a response, or a reference to one.
type documented struct {
	Ref     string `yaml:"$ref"`
	Content map[string]any
}

func readOpenAPI(t *testing.T) *openAPI {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc := &openAPI{schemas: jsonschema.NewCompiler(), seen: map[string]bool{}}
	var plain any
	if err := yaml.Unmarshal(text, doc); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON)); err != nil {
		t.Fatal(err)
	}
	doc.schemas.DefaultDraft(jsonschema.Draft2020)
	doc.schemas.AssertFormat()
	if err := doc.schemas.AddResource("openapi.yaml", plain); err != nil {
		t.Fatal(err)
	}
	return doc
}

// operations are the documented ones, by "GET /api/v1/rules", those that every server has below /api/v1 by that.
func (d *openAPI) operations() map[string]*operation {
	all := map[string]*operation{}
	for path, item := range d.Paths {
		prefix := "/api/v1"
		if len(item.Servers) > 0 {
			prefix = ""
		}
		for method, o := range map[string]*operation{"GET": item.Get, "POST": item.Post, "DELETE": item.Delete} {
			if o != nil {
				all[method+" "+prefix+path] = o
			}
		}
	}
	return all
}

// validate checks JSON against the schema at a pointer of the document.
func (d *openAPI) validate(t *testing.T, what, pointer string, text []byte) {
	t.Helper()
	schema, err := d.schemas.Compile("openapi.yaml#" + pointer)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Errorf("%s answers what is no JSON: %v\n%s", what, err, text)
		return
	}
	if err := schema.Validate(v); err != nil {
		t.Errorf("%s answers what is not documented: %v\n%s", what, err, text)
	}
}

// call sends a request to a documented operation, and checks its answer against the document.
func (d *openAPI) call(t *testing.T, p *process, c apiCall) (status int) {
	t.Helper()
	target, _, _ := strings.Cut(c.target, "?")
	name := c.method + " " + target
	o := d.operations()[name]
	if o == nil {
		t.Errorf("%s is not documented", name)
		return 0
	}
	req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+p.app.HTTPAddr()+c.target,
		strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	if c.accept != "" {
		req.Header.Set("Accept", c.accept)
	}
	client := p.socket
	if c.isStranger {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != c.want && c.want != 0 {
		t.Errorf("%s %s: %s, want %d\n%s", c.method, c.target, res.Status, c.want, text)
		return res.StatusCode
	}
	d.check(t, name, o, res, text)
	return res.StatusCode
}

// check compares a response with what is documented.
func (d *openAPI) check(t *testing.T, name string, o *operation, res *http.Response, text []byte) {
	t.Helper()
	status := strconv.Itoa(res.StatusCode)
	d.seen[name+" "+status] = true
	r, ok := o.Responses[status]
	if !ok {
		t.Errorf("%s: status %s is not documented", name, status)
		return
	}
	method, path, _ := strings.Cut(name, " ")
	at := "/paths/" + escaped(strings.TrimPrefix(path, "/api/v1")) + "/" + strings.ToLower(method) + "/responses/" + status
	if r.Ref != "" {
		at = strings.TrimPrefix(r.Ref, "#")
		r = d.Components.Responses[filepath.Base(r.Ref)]
	}
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if _, ok := r.Content[kind]; err != nil || !ok {
		t.Errorf("%s: status %s has the type %q, documented are %v", name, status, kind,
			slices.Collect(maps.Keys(r.Content)))
		return
	}
	if kind == "application/json" {
		d.validate(t, name+" "+status, at+"/content/application~1json/schema", text)
	}
}

// escaped is a path as part of a JSON pointer in a URL.
func escaped(path string) string {
	return strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(path)
}

type apiCall struct {
	method, target string
	want           int // the status; 0: any that is documented
	body           string
	accept         string
	isStranger     bool // it shows no proof
}

const apiRules = `
domain: shop
descriptors:
  - key: client
    description: one client
    owner: team-edge
    rate_limits:
      - {name: burst, algorithm: funnel, requests_per_unit: 2, unit: hour}
      - {name: daily, algorithm: sliding_window, requests_per_unit: 1000, window: 24h, segments: 24,
         reservation: {estimate: 10, ends: cost}}
    response: {body: slow down}
    descriptors:
      - {key: path, value: /a*, shadow_mode: true, rate_limit: {algorithm: fixed_window, requests_per_unit: 9, unit: day, align: calendar}}
  - key: slots
    rate_limit: {algorithm: concurrency, requests_per_unit: 5, lease: 60s}
  - {key: vip, rate_limit: {unlimited: true}}
  - {key: tokens, rate_limit: {requests_per_unit: 9, unit: day, reservation: {estimate: 2, ends: cost}}}
`

// Every route of the server is documented, and every documented one is there; each documented status is seen, and its
// JSON is valid by its schema, which admits no field that it does not name.
func TestOpenAPI(t *testing.T) {
	doc := readOpenAPI(t)
	checkRoutes(t, doc)

	o := options(t, apiRules)
	o.QuotaOptions = quotaOptions(t, apiRules).QuotaOptions
	o.HTTPJSON, o.Pprof, o.Top.PerRule = true, true, 10
	p := start(t, o)
	const ask = `{"domain": "shop", "descriptors": [{"entries": [{"key": "client", "value": "ann"}]}]}`
	calls := []apiCall{
		{method: "POST", target: "/json", body: ask, want: 200},
		{method: "POST", target: "/json", body: ask, want: 200},
		{method: "POST", target: "/json", body: ask, want: 429},
		{method: "POST", target: "/json", body: "{", want: 400},
		{method: "GET", target: "/", want: 200},
		{method: "GET", target: "/", accept: "text/html", want: 200},
		{method: "GET", target: "/healthcheck", want: 200},
		{method: "GET", target: "/api/v1/rules?sort=denied", want: 200},
		{method: "GET", target: "/api/v1/rules?n=0", want: 400},
		{method: "GET", target: "/api/v1/explain?domain=shop&descriptor=client=ann&descriptor=vip=x&descriptor=clien=x", want: 200},
		{method: "GET", target: "/api/v1/explain", want: 400},
		{method: "GET", target: "/api/v1/top?by=denied", want: 200},
		{method: "GET", target: "/api/v1/top?by=size", want: 400},
		{method: "GET", target: "/api/v1/history", want: 200},
		{method: "GET", target: "/api/v1/rules?history=true", want: 200},
		{method: "GET", target: "/api/v1/keys/get?domain=shop&descriptor=client=ann", want: 200},
		{method: "GET", target: "/api/v1/keys/get?domain=shop&descriptor=tokens=1", want: 200},
		{method: "GET", target: "/api/v1/keys/get?domain=shop&descriptor=slots=1", want: 200},
		{method: "GET", target: "/api/v1/keys/get?domain=shop&descriptor=,", want: 400},
		{method: "GET", target: "/api/v1/keys/get?domain=none&descriptor=client=ann", want: 404},
		{method: "GET", target: "/api/v1/rules?domain=shop&rule=client", want: 200},
		{method: "GET", target: "/api/v1/rules?domain=shop&rule=none", want: 404},
		{method: "POST", target: "/api/v1/keys/reset", body: `{"domain": "shop", "descriptor": "client=ann"}`, want: 200},
		{method: "POST", target: "/api/v1/keys/reset", body: `{}`, want: 400},
		{method: "POST", target: "/api/v1/keys/reset", body: `{"domain": "none", "descriptor": "a=b"}`, want: 404},
		{method: "POST", target: "/api/v1/reload", want: 200},
		{method: "GET", target: "/debug/pprof/", want: 200},
		{method: "GET", target: "/debug/pprof/profile?seconds=1", want: 200},
		{method: "GET", target: "/debug/pprof/trace?seconds=1", want: 200},
		{method: "GET", target: "/debug/pprof/symbol", want: 200},
	}
	for _, path := range []string{"healthz", "readyz", "status", "version", "metrics", "rules", "top"} {
		calls = append(calls, apiCall{method: "GET", target: "/api/v1/" + path, want: 200})
	}
	for _, c := range calls {
		doc.call(t, p, c)
	}
	doc.strangers(t, p, 403, "403")
	checkRefusals(t, doc)
	checkSeen(t, doc)
}

// checkRoutes compares the routes of a server with everything with those that are documented.
func checkRoutes(t *testing.T, doc *openAPI) {
	t.Helper()
	var there []string
	for _, r := range admin.Routes(admin.Options{
		Metrics: http.NotFoundHandler(), Config: admin.Config{Pprof: true, HTTPJSON: true},
	}) {
		if r.Method == "" {
			r.Method = "POST" // every method, of which one is documented
		}
		prefix := ""
		if r.Versioned {
			prefix = "/api/v1"
		}
		there = append(there, r.Method+" "+prefix+strings.TrimSuffix(r.Path, "{$}"))
	}
	operations := doc.operations()
	for _, name := range there {
		if operations[name] == nil {
			t.Errorf("%s is there and not documented", name)
		}
		delete(operations, name)
	}
	for name := range operations {
		t.Errorf("%s is documented and not there", name)
	}
}

// strangers sends the requests for which these statuses are documented without a proof.
func (d *openAPI) strangers(t *testing.T, p *process, want int, documented ...string) {
	t.Helper()
	for name, o := range d.operations() {
		lacks := func(status string) bool { _, ok := o.Responses[status]; return !ok }
		if slices.ContainsFunc(documented, lacks) || name == "POST /json" && want != http.StatusServiceUnavailable {
			continue // TestJSONIsGuardedAsGRPC
		}
		method, path, _ := strings.Cut(name, " ")
		d.call(t, p, apiCall{method: method, target: strings.Replace(path, "{id}", "x", 1), isStranger: true, want: want})
	}
}

// checkRefusals sees the statuses of processes that lack something.
func checkRefusals(t *testing.T, doc *openAPI) {
	t.Helper()
	o := options(t, rulesOf("1"))
	o.HTTPTokenFile, o.Pprof, o.HTTPJSON = filepath.Join(t.TempDir(), "token"), true, true
	o.GRPCTLSClientCA = "" // else /json requires the token, too
	replace(t, o.HTTPTokenFile, "s3cret-s3cret-s3cret")
	secured := start(t, o)
	doc.seen["POST /json 401"], doc.seen["POST /json 403"] = true, true // TestJSONIsGuardedAsGRPC
	doc.strangers(t, secured, 401, "401")
	doc.call(t, secured, apiCall{method: "GET", target: "/api/v1/top", want: 404}) // --top-keys 0
	if err := os.Remove(o.HTTPTokenFile); err != nil {
		t.Fatal(err)
	}
	doc.strangers(t, secured, 503, "401", "503")

	bad := options(t, "domain: [")
	bad.AllowEmptyRules, bad.HealthcheckNeedsRules = true, true
	empty := start(t, bad)
	doc.call(t, empty, apiCall{method: "GET", target: "/api/v1/readyz", want: 503})
	doc.call(t, empty, apiCall{method: "GET", target: "/healthcheck", want: 500})
	doc.call(t, empty, apiCall{method: "POST", target: "/api/v1/reload", want: 422})
	for _, path := range []string{"status", "rules"} {
		doc.call(t, empty, apiCall{method: "GET", target: "/api/v1/" + path, want: 200})
	}

	redis := redistest.Start(t)
	fails := redisOptions(t, redis, rulesOf("1"))
	fails.OnStoreFailure = "error"
	away := start(t, fails)
	away.ask("ann")
	doc.call(t, away, apiCall{method: "GET", target: "/api/v1/keys/get?domain=shop&descriptor=client=ann", want: 200})
	redis.Kill()
	doc.call(t, away, apiCall{method: "GET", target: "/api/v1/keys/get?domain=shop&descriptor=client=bob", want: 503})
	doc.call(t, away, apiCall{method: "GET", target: "/api/v1/explain?domain=shop&descriptor=client=bob", want: 503})
	doc.call(t, away, apiCall{method: "GET", target: "/api/v1/status", want: 200})
}

// checkSeen says which documented statuses no request had.
func checkSeen(t *testing.T, doc *openAPI) {
	t.Helper()
	for name, o := range doc.operations() {
		for status := range o.Responses {
			if !doc.seen[name+" "+status] {
				t.Errorf("%s: no request has seen status %s", name, status)
			}
		}
	}
}
