package limiter

// Admitted reports whether out admits the request: every hit in Mode Enforce must fit, and QuotaDenies must be false.
func Admitted(hits []Hit, out []Decision) bool {
	for i := range hits {
		if hits[i].Mode == Enforce && !out[i].Allowed {
			return false
		}
	}
	return !QuotaDenies(hits, out)
}

// QuotaDenies reports whether the request has Quota hits, and each group of Quota hits (see Hit.Group) has a hit that
// does not fit.
func QuotaDenies(hits []Hit, out []Decision) bool {
	quotas, denies := 0, true
	group, fits := 0, false // group of the previous Quota hits; whether all of them fit
	for i := range hits {
		if hits[i].Mode != Quota {
			continue
		}
		switch {
		case quotas == 0 || hits[i].Group > group:
			denies = denies && !fits
			group, fits = hits[i].Group, true
		case hits[i].Group < group: // the groups are not in ascending order
			return scatteredQuotasDeny(hits, out)
		}
		quotas++
		fits = fits && (out[i].Allowed || hits[i].Group < 0)
	}
	return quotas > 0 && denies && !fits
}

// scatteredQuotasDeny is QuotaDenies for groups in any order.
func scatteredQuotasDeny(hits []Hit, out []Decision) bool {
	over := make(map[int]bool)
	for i := range hits {
		if hits[i].Mode == Quota {
			over[hits[i].Group] = over[hits[i].Group] || !out[i].Allowed && hits[i].Group >= 0
		}
	}
	for _, is := range over {
		if !is {
			return false
		}
	}
	return true
}
