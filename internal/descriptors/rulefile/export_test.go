package rulefile

// SetChunkSize sets how many bytes of a list of descriptors are decoded at once.
func SetChunkSize(size int) { chunkSize = size }
