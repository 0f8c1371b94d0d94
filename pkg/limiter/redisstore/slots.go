package redisstore

import "strings"

// slots is the number of hash slots of a Redis Cluster. A script may use keys of one slot only.
const slots = 16384

// keyspace makes the names of counters' keys.
type keyspace struct {
	prefix  string
	slotted bool // the keys are in a cluster
}

// key returns the name of a counter's key in Redis.
func (k *keyspace) key(key string) string { return string(k.appendKey(nil, key)) }

// appendKey appends the name that key returns.
func (k *keyspace) appendKey(dst []byte, key string) []byte {
	if k.slotted {
		key = tagged(key)
	}
	return append(append(dst, k.prefix...), key...)
}

// tagged adds a hash tag to a counter's key: braces around the part that the limits of one descriptor share. So these
// limits have their counters in one slot, and one script call decides them. Clients cannot choose the slot of a
// counter, because braces in the values of requests are escaped in keys.
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

// keyInSlot returns a key of the same slot as a counter's key, where possible without an allocation.
func (s *Store) keyInSlot(key string) string {
	shared := strings.IndexByte(key, '|') + 1
	if shared == 0 || shared == len(key) || strings.ContainsAny(key, "{}") || strings.Contains(s.prefix, "{") {
		return s.key(key)
	}
	return key[shared:] // the hash tag
}

// slotOf returns the slot of a key: the CRC of the hash tag between its first { and the next }, else of the whole key.
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

// crc16 is the table of the CRC with the polynomial 0x1021 (XMODEM), as the Redis Cluster specification defines it.
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
