package neigh

import (
	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Destinations calls f for each MAC whose destination is not the one of a former snapshot of the same table, with the
// destination, or with ok false if it has none any more. It compares the versions of all shards, and all entries of the
// shards that differ.
func (s *Snapshot) Destinations(former *Snapshot, f func(mac ipoib.MAC, to hca.UDDest, ok bool)) {
	for i := range numShards {
		was, formerly := former.routes.shard(i)
		is, version := s.routes.shard(i)
		if formerly == version { // the snapshots share it
			continue
		}
		for key, r := range is {
			if before, ok := was[key]; !ok || before.dest != r.dest {
				f(key.mac(), r.dest, true)
			}
		}
		for key := range was {
			if _, ok := is[key]; !ok {
				f(key.mac(), hca.UDDest{}, false)
			}
		}
	}
}

// shard returns a map of the table, which may be nil, and its version.
func (t *shards[K, V]) shard(i int) (map[K]V, uint32) {
	if t == nil {
		return nil, 0
	}
	return t.maps[i], t.versions[i]
}
