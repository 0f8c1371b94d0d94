package limiter

// Admitted says whether a request passes: every Enforce hit fits, and not all of its quotas are over.
func Admitted(hits []Hit, out []Decision) bool {
	for i := range hits {
		if hits[i].Mode == Enforce && !out[i].Allowed {
			return false
		}
	}
	return !QuotaDenies(hits, out)
}

// QuotaDenies says whether the request has Quota hits, and each group of them one that does not fit.
func QuotaDenies(hits []Hit, out []Decision) bool {
	quotas, denies := 0, true
	group, fits := 0, false // the group of the quota hits before, and whether all of them fit
	for i := range hits {
		if hits[i].Mode != Quota {
			continue
		}
		switch {
		case quotas == 0 || hits[i].Group > group:
			denies = denies && !fits
			group, fits = hits[i].Group, true
		case hits[i].Group < group: // they do not stand side by side
			return scatteredQuotasDeny(hits, out)
		}
		quotas++
		fits = fits && (out[i].Allowed || hits[i].Group < 0)
	}
	return quotas > 0 && denies && !fits
}

// scatteredQuotasDeny is QuotaDenies where the hits of a group stand anywhere.
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
