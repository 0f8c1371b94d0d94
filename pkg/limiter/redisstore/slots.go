package redisstore

import "strings"

// slots is how many hash slots a Redis Cluster has. A script may touch the keys of one only.
const slots = 16384

// keyspace names the keys of counters.
type keyspace struct {
	prefix  string
	slotted bool // of a cluster, where a script call may have keys of one slot only
}

// key returns the name of a counter's key in Redis.
func (k *keyspace) key(key string) string { return string(k.appendKey(nil, key)) }

// appendKey appends what key returns.
func (k *keyspace) appendKey(dst []byte, key string) []byte {
	if k.slotted {
		key = tagged(key)
	}
	return append(append(dst, k.prefix...), key...)
}

// tagged is a counter's key with what the limits of one descriptor share in braces: they lie in one slot, and their
// requests are decided in one step. Values of requests have no braces of their own left in a key, so no client can
// choose the slot of another client's counter.
func tagged(key string) string {
	shared := strings.IndexByte(key, '|') + 1
	if shared == 0 || strings.ContainsAny(key, "{}") {
		return key
	}
	return key[:shared] + "{" + key[shared:] + "}"
}

// untagged undoes tagged.
func untagged(key string) string {
	shared := strings.Index(key, "|{") + 1
	if shared == 0 || !strings.HasSuffix(key, "}") {
		return key
	}
	return key[:shared] + key[shared+1:len(key)-1]
}

// keyInSlot returns a key in the slot of a counter's; where possible, without an allocation.
func (s *Store) keyInSlot(key string) string {
	shared := strings.IndexByte(key, '|') + 1
	if shared == 0 || shared == len(key) || strings.ContainsAny(key, "{}") || strings.Contains(s.prefix, "{") {
		return s.key(key)
	}
	return key[shared:] // what tagged puts in braces
}

// slotOf returns the slot of a key: the CRC of what is between its first { and the next }, else of all of it.
func slotOf(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if length := strings.IndexByte(key[open+1:], '}'); length > 0 {
			key = key[open+1 : open+1+length]
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return crc % slots
}

// crc16 is the table of the CRC of polynomial 0x1021 (XMODEM), which the Redis Cluster specification names.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
		table[i] = crc
	}
	return table
}()
