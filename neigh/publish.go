package neigh

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// view is what the data path sees of a table. It collects the changes for the next snapshot, and decides
// when to publish that: at most once per Step, and not before the last snapshot's pause is over for
// changes that the slow path can bridge. So a flood of new peers does not cost one snapshot per peer.
type view struct {
	step    *step
	host    *host
	routes  draft[macKey, route]
	sources draft[hca.UDSource, source]
	epoch   uint64    // of the last snapshot; 0 if there was none
	dirty   bool      // there are unpublished changes
	rush    bool      // the data path's snapshot is wrong
	pause   time.Time // end of the last snapshot's pause
	late    time.Time // the changes may wait until then; zero if they cannot wait
}

// shown records the addresses under which the next snapshot contains a peer.
type shown struct {
	route, source bool
	mac           ipoib.MAC
	key           hca.UDSource // as a source
}

// show puts p into the next snapshot as it is now. It must be called when the handle, the
// MAC, the endpoint or the class of p has changed.
func (v *view) show(p *peer) {
	v.hide(p)
	ready := p.handle.state == handleReady
	p.shown = shown{route: ready, source: ready || !p.plain, mac: p.mac, key: p.key()}
	if v.host.link.lid != 0 {
		p.shown.source, p.shown.key = p.lid != 0, p.byLID()
	}
	if p.shown.route {
		key := keyOf(p.mac)
		v.routes.shard(key.shardOf())[key] = route{v.host.link.dest(p), &p.sent}
	}
	if p.shown.source {
		v.sources.shard(shardOf(&p.shown.key))[p.shown.key] = source{p.mac, p.used, &p.heard}
	}
}

// hide removes p from the next snapshot.
func (v *view) hide(p *peer) {
	if p.shown.route {
		key := keyOf(p.shown.mac)
		delete(v.routes.shard(key.shardOf()), key)
	}
	if p.shown.source {
		delete(v.sources.shard(shardOf(&p.shown.key)), p.shown.key)
	}
	p.shown = shown{}
}

// returnAH returns a handle that no snapshot after the current one will contain.
func (v *view) returnAH(ah hca.AH) {
	v.step.emit(DestroyAH{ah, v.epoch})
	v.changeLate()
}

// change notes a change that the data path can do without for the length of a
// pause.
func (v *view) change() { v.dirty, v.late = true, time.Time{} }

// changeLate notes a change that may wait for latePause. The deadline of an earlier
// unpublished change stays in force.
func (v *view) changeLate() {
	if !v.dirty {
		v.dirty, v.late = true, v.step.now.Add(latePause)
	}
}

// needed records that the unpublished changes can no longer wait.
func (v *view) needed() { v.late = time.Time{} }

// urgent notes a change without which the data path would be wrong.
func (v *view) urgent() { v.dirty, v.rush = true, true }

// next returns when a snapshot is due, or zero if there are no changes.
func (v *view) next() time.Time {
	switch {
	case !v.dirty:
		return time.Time{}
	case v.late.After(v.pause):
		return v.late
	}
	return v.pause
}

// publish publishes a snapshot if one is due.
func (v *view) publish() {
	if !v.dirty || !v.rush && v.next().After(v.step.now) {
		return
	}
	pause := publishPause + time.Duration(v.routes.copied+v.sources.copied+v.host.stations.marks.copied+v.host.stations.places.copied)*copyPause
	v.epoch, v.dirty, v.rush = v.epoch+1, false, false
	v.pause, v.late = v.step.now.Add(pause), time.Time{}
	v.step.emit(Publish{v.snapshot()})
}

// snapshot returns a snapshot of the table.
func (v *view) snapshot() *Snapshot {
	link, st := &v.host.link, &v.host.stations
	return &Snapshot{
		alone: len(st.behind()) == 0 && st.master.IsZero(),
		epoch: v.epoch, up: link.up, self: link.key(), broadcast: link.broadcast, groups: link.groups,
		own: st.own.mac, ownSent: st.own.sent, stations: st.marks.publish(),
		home: st.home.mac, fallback6: st.fallback(netip.IPv6Unspecified()),
		given: slices.Clone(st.home.ips[:min(len(st.home.ips), maxCompared)]), links: st.links, places: st.places.publish(),
		routes: v.routes.publish(), sources: v.sources.publish(),
	}
}
