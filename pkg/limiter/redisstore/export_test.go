package redisstore

// SetWall puts another clock in the place of this process's, before the store is used.
func (s *Store) SetWall(now func() int64) { s.wall = now }
