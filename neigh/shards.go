package neigh

import (
	"maps"

	"ipoibd/hca"
)

// numShards is the number of maps that a table of the snapshot is divided into. A snapshot
// copies the list of maps, and the maps that have changed since the last one, so a single
// change among 10,000 peers copies about 10 peers.
const numShards = 1024

// shards is an immutable table: the maps of its shards. Maps of two snapshots with the same version are the same map.
type shards[K comparable, V any] struct {
	maps     [numShards]map[K]V
	versions [numShards]uint32
}

// draft is a table that is changed between snapshots. Its maps are shared with the last
// snapshot until they change.
type draft[K comparable, V any] struct {
	table  *shards[K, V]   // nil: empty
	own    [numShards]bool // the map is shared with no snapshot
	ownAll bool            // the list of maps is shared with no snapshot
	copied int             // entries copied since the last snapshot
}

// shard returns the map of a shard, which the caller may change.
func (d *draft[K, V]) shard(i uint) map[K]V {
	if !d.ownAll {
		list := new(shards[K, V])
		if d.table != nil {
			*list = *d.table
		}
		d.table, d.ownAll = list, true
	}
	if !d.own[i] {
		d.copied += len(d.table.maps[i])
		if d.table.maps[i] = maps.Clone(d.table.maps[i]); d.table.maps[i] == nil {
			d.table.maps[i] = make(map[K]V, 1)
		}
		d.table.versions[i]++
		d.own[i] = true
	}
	return d.table.maps[i]
}

// publish returns the current table. Later changes do not affect it.
func (d *draft[K, V]) publish() *shards[K, V] {
	d.own, d.ownAll, d.copied = [numShards]bool{}, false, 0
	return d.table
}

// shardOf returns the shard of a MAC. All but the first bits of a MAC come from a hash.
func (k macKey) shardOf() uint { return uint(k % numShards) }

// shardOf returns the shard of the key of a sender. GIDs differ in their last bytes, LIDs in their last bits, and
// interfaces at one port in their QPNs.
func shardOf(key *hca.UDSource) uint {
	return (uint(key.GID[15]) ^ uint(key.GID[14])<<3 ^ uint(key.GID[13])<<6 ^ uint(key.LID) ^ uint(key.QPN)) % numShards
}
