package descriptors

// Hashes says whether the value of entry i is to be shown to nobody: the rule has hash_values there.
func (r *Rule) Hashes(i int) bool { return r.level(i).hash }
