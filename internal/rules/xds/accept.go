package xds

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

const typeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Bounds of the kept findings.
const (
	maxFindings       = 100     // maximum number for all domains
	maxDomainFindings = 20      // maximum number per domain
	maxFinding        = 1 << 10 // maximum length in bytes
)

// accepted has the active domains by name. Its values must not be changed.
type accepted map[string]*domain

type domain struct {
	good     []byte            // newest valid content in deterministic encoding; nil if there never was any
	newest   [sha256.Size]byte // hash of the newest content, valid or not
	findings []string          // first errors of the newest content
	problems int               // number of errors of the newest content
}

type verdict struct {
	next     accepted
	findings []string // texts of the first maxFindings errors
	problems int
	refused  int  // number of domains and of resources without a domain whose content is refused
	useless  bool // the response is not empty, but all of it is refused
}

// add adds the errors of one domain or resource. findings has the text of the first errors.
func (v *verdict) add(findings []string, problems int) {
	v.refused++
	v.problems += problems
	for _, f := range findings {
		if len(v.findings) < maxFindings {
			v.findings = append(v.findings, shorten(f))
		}
	}
}

// judge decides, domain by domain, which resources of a response are used. A domain whose new content has errors keeps
// its last valid content. A domain that is missing from the response is removed, unless a resource has no readable
// domain name or all of the response is refused.
func (s *Source) judge(before accepted, resources []*anypb.Any) *verdict {
	v := &verdict{next: accepted{}}
	nameless := false
	used := 0
	for i, r := range sorted(resources) {
		config, err := decode(r)
		name := config.GetDomain()
		switch {
		case err != nil:
			nameless = true
			v.add([]string{fmt.Sprintf("%s%s: resource %d: %s", Scheme, s.o.Server, i+1, err)}, 1)
			continue
		case v.next[name] != nil:
			v.add([]string{s.nameOf(name) + ": the domain is in two resources, only one of which is used; put both into one"}, 1)
			continue
		}
		d := s.judgeDomain(before[name], name, config)
		v.next[name] = d
		if d.problems == 0 {
			used++
			continue
		}
		v.add(d.findings, d.problems)
	}
	v.useless = len(resources) > 0 && used == 0
	if nameless || v.useless { // a NACK means that the last accepted response stays active
		for name, d := range before {
			if v.next[name] == nil {
				v.next[name] = d
			}
		}
	}
	return v
}

func (s *Source) judgeDomain(before *domain, name string, config *ratelimitv3.RateLimitConfig) *domain {
	d := &domain{}
	if before != nil {
		d.good = before.good
	}
	config.Name = "" // the name has no meaning
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(config)
	if err != nil {
		d.findings, d.problems = []string{s.nameOf(name) + ": " + err.Error()}, 1
		return d
	}
	if d.newest = sha256.Sum256(text); before != nil && before.newest == d.newest {
		return before
	}
	if errs := check(s.process, s.nameOf(name), config); len(errs) > 0 {
		for _, e := range errs[:min(len(errs), maxDomainFindings)] {
			d.findings = append(d.findings, shorten(e.Error()))
		}
		d.problems = errs.Count()
		return d
	}
	d.good = text
	return d
}

// check compiles one domain alone. It accepts what envoyproxy/ratelimit tolerates.
func check(process descriptors.Process, file string, config *ratelimitv3.RateLimitConfig) descriptors.Errors {
	process.LenientFiles = Scheme
	b := descriptors.NewBuilder(process)
	add(b, file, config)
	_, err := b.Build()
	errs, _ := err.(descriptors.Errors) //nolint:errorlint // Build returns no other type
	return errs
}

// files returns the domains as files, sorted by name.
func (s *Source) files(from accepted) (files []reload.File) {
	for name, d := range from {
		if d.good != nil {
			files = append(files, reload.File{Name: s.nameOf(name), Data: d.good})
		}
	}
	slices.SortFunc(files, func(a, b reload.File) int { return cmp.Compare(a.Name, b.Name) })
	return files
}

// nameOf returns the domain's name in messages, which is also the name of its file.
func (s *Source) nameOf(domain string) string {
	if strings.ContainsFunc(domain, func(r rune) bool { return r == ' ' || r == '"' || !unicode.IsPrint(r) }) {
		domain = strconv.Quote(domain)
	}
	return Scheme + s.o.Server + " domain " + domain
}

// sorted returns the resources in an order that does not depend on their order in the response.
func sorted(resources []*anypb.Any) []*anypb.Any {
	all := slices.Clone(resources)
	slices.SortFunc(all, func(a, b *anypb.Any) int { return bytes.Compare(a.GetValue(), b.GetValue()) })
	return all
}

// decode decodes a resource. It returns an error if the resource has another type or no domain.
func decode(r *anypb.Any) (*ratelimitv3.RateLimitConfig, error) {
	if r.GetTypeUrl() != typeURL {
		return nil, fmt.Errorf("its type is %s, not %s", shorten(strconv.Quote(r.GetTypeUrl())), typeURL)
	}
	config := &ratelimitv3.RateLimitConfig{}
	if err := proto.Unmarshal(r.GetValue(), config); err != nil {
		return nil, fmt.Errorf("it cannot be decoded: %w", err)
	}
	if config.GetDomain() == "" {
		return nil, fmt.Errorf("resource name %s has no domain; name the domain that Envoy's rate limit filter sends",
			shorten(strconv.Quote(config.GetName())))
	}
	return config, nil
}

func shorten(text string) string {
	return logging.Shorten(text, maxFinding)
}
