package rulefile_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

const shop = `
domain: shop
descriptors:
  - key: api_key
    metadata: {plan: basic}
    rate_limits:
      - {name: burst, algorithm: token_bucket, requests_per_unit: 50, unit: second, burst: 100}
      - {name: daily, requests_per_unit: 100000, unit: day, on_store_failure: deny}
`

// Compile a rule file, and find the rule of a request and its limits.
func ExampleCompile() {
	set, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: []byte(shop)}})
	if err != nil {
		fmt.Println(err)
		return
	}
	rule, _ := set.Match("shop", []descriptors.Entry{{Key: "api_key", Value: "k1"}})
	fmt.Println(set.Domains(), rule.Source(), rule.Metadata()["plan"])
	for _, limit := range rule.Limits() {
		fmt.Println(limit.Name(), limit, limit.OnStoreFailure())
	}
	// Output:
	// [shop] shop.yaml:4 basic
	// burst token_bucket: 50 per 1s, burst 100 local
	// daily fixed_window: 100000 per 1d deny
}

// Each error has a position and a correction.
func ExampleCompile_errors() {
	_, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: []byte(`
domain: shop
descriptors:
  - key: api_key
    rate_limit: {requests_per_unit: 5, unit: minute, algorythm: funnel}
`)}})
	fmt.Println(err)
	// Output:
	// shop.yaml:5:54: algorythm is not a field of a rate limit; did you mean algorithm?
}

// A rule takes its values from a file, which the caller must read.
func ExampleIncludes() {
	rules := rulefile.File{Name: "rules/shop.yaml", Data: []byte(`
domain: shop
descriptors:
  - {key: country, values_file: eu.txt, rate_limit: {requests_per_unit: 5, unit: minute}}
`)}
	files := []rulefile.File{rules}
	for _, include := range rulefile.Includes(rules) {
		fmt.Println(include.At, "names", include.Name)
		files = append(files, rulefile.File{Name: include.Name, Data: []byte("AT\nDE\nFR\n"), Included: true})
	}
	set, err := rulefile.Compile(files)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, country := range []string{"DE", "CH"} {
		_, ok := set.Match("shop", []descriptors.Entry{{Key: "country", Value: country}})
		fmt.Println(country, ok)
	}
	// Output:
	// rules/shop.yaml:4:33 names rules/eu.txt
	// DE true
	// CH false
}

// Rules follow changes of their files, including values_file.
func ExampleCompile_reloaded() {
	dir, err := os.MkdirTemp("", "rulefile-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(shop), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	rules, err := reload.New(reload.Options[*descriptors.Set]{
		Sources: []reload.Source{reload.Files{Paths: []string{dir}, Includes: func(f reload.File) (all []reload.Include) {
			for _, to := range rulefile.Includes(rulefile.File(f)) {
				all = append(all, reload.Include(to))
			}
			return all
		}}},
		Compile: func(_ context.Context, read []reload.File) (*descriptors.Set, error) {
			files := make([]rulefile.File, len(read))
			for i, f := range read {
				files[i] = rulefile.File(f)
			}
			return rulefile.Compile(files)
		},
		OnLoad: func(e reload.Event) { fmt.Println(e.Outcome, e.Err) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := rules.Load(context.Background()); err != nil { // then: go rules.Run(ctx)
		fmt.Println(err)
		return
	}
	rule, _ := rules.Get().Match("shop", []descriptors.Entry{{Key: "api_key", Value: "k1"}})
	fmt.Println(rule.Limits()[0])
	// Output:
	// loaded <nil>
	// token_bucket: 50 per 1s, burst 100
}
