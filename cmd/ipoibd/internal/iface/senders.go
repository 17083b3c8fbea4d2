package iface

import (
	"hash/maphash"

	"golang.org/x/time/rate"

	"ipoibd/hca"
)

// Bounds of the messages of one port that pass to the slow path. Each takes up to 40 us of a core there, so one
// sender takes 4 % of a core. A host with 256 interfaces, the most that the table keeps per GID, announces them
// all at once with two messages each when it starts, and a second is enough for it to verify them all.
const (
	senderRate  = 1000 // messages/s
	senderBurst = 512
	// Bounds of the messages of one peer in use that go first. Its host renews a neighbour at most once a second
	// for each address, and the burst is what it sends at a restart with 16 addresses. All buckets together take
	// at most 16 % of a core, so that strangers do not starve even if an attacker has the host use many peers.
	peerRate  = 16 // messages/s
	peerBurst = 64
	// senderBuckets bounds the memory. Senders that share a bucket share its rate. Outside the daemon
	// it is unknown which do, and each daemon has other ones.
	senderBuckets = 256
)

// senders are token buckets by sender, or by its port, so that one sender cannot fill the slow path. A sender that forges addresses
// of the underlay has a bucket for each. Any goroutine may call allow.
type senders struct {
	seed    maphash.Seed
	buckets []*rate.Limiter
}

func newSenders(perSecond rate.Limit, burst int) senders {
	s := senders{maphash.MakeSeed(), make([]*rate.Limiter, senderBuckets)}
	for i := range s.buckets {
		s.buckets[i] = rate.NewLimiter(perSecond, burst)
	}
	return s
}

// allow reports whether another message may pass of the sender or port with this key: [hca.UDSource.Key] or
// [hca.UDSource.Port].
func (s *senders) allow(key hca.UDSource) bool {
	return s.buckets[s.bucket(key)].Allow()
}

func (s *senders) bucket(key hca.UDSource) uint64 {
	return maphash.Comparable(s.seed, key) % senderBuckets
}
