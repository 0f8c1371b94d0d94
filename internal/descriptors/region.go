package descriptors

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-ratelimit/weir/internal/limit"
)

// ParseRegions parses the percentages of regions, such as "eu=60,us=40", for Process.Regions. The regions of an empty
// text are empty, not nil.
func ParseRegions(text string) (map[string]int64, error) {
	all, sum := map[string]int64{}, int64(0)
	if text == "" {
		return all, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		percent, err := strconv.ParseInt(value, 10, 64)
		if name == "" || err != nil || percent < 1 || percent > 100 {
			return nil, fmt.Errorf("%q must be a region and its percentage from 1 to 100; write eu=60,us=40", item)
		}
		if all[name] != 0 {
			return nil, fmt.Errorf("the region %s has two percentages; remove one of the two", name)
		}
		all[name] = percent
		sum += percent
	}
	if sum > 100 {
		return nil, fmt.Errorf("the percentages must add up to at most 100, got %d", sum)
	}
	return all, nil
}

// percent returns the part of this process's region in percent: 100 without a region.
func (p *Process) percent() int64 {
	if p.Region == "" {
		return 100
	}
	return p.Regions[p.Region]
}

// checkParts checks a limit with Placement.Regions and sets its policy to the part of this process's region. It checks
// the parts of all regions, so that rules are valid in all regions or in none.
func (c *Builder) checkParts(l *checked) {
	regions, whole, before := c.process.Regions, l.params, c.Problems()
	if regions != nil && len(regions) == 0 {
		c.Errorf(l.fieldAt("scope"), "scope: regions needs the part of each region; start Weir with --region and --regions, "+
			"such as --region eu --regions eu=60,us=40, or remove scope")
		return
	}
	for _, percent := range append(slices.Sorted(maps.Values(regions)), c.process.percent()) {
		part, err := limit.Part(whole, percent)
		if c.reportParams(l, err); err == nil {
			l.params = part
			c.checkPolicy(l)
		}
		if c.Problems() > before {
			l.policy = nil
			return
		}
	}
}
