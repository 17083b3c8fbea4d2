package iface

import (
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/vnet"
)

// collectEvery is how often handles that wait for their last use are looked at.
const collectEvery = 50 * time.Millisecond

// neighbours is the peer table with what its actions need.
type neighbours struct {
	table   *neigh.Table
	actions []neigh.Action
	refused []uint64          // requests for handles that nobody could take
	grave   []neigh.DestroyAH // handles that a posted request may still use
	frame   []byte            // one frame for the host, with its virtio header
	asks    asks
	strays  strays
}

func newNeighbours() neighbours {
	return neighbours{table: neigh.New(neigh.Config{}), frame: make([]byte, 0, vnet.HeaderLen+ipoib.MaxMTU)}
}

// deadline returns when to look at the table, the handles, the host's neighbours or
// stray datagrams next; zero: never.
func (n *neighbours) deadline() time.Time {
	at, _ := n.table.NextDeadline()
	if len(n.grave) > 0 {
		at = sooner(at, time.Now().Add(collectEvery))
	}
	return sooner(sooner(at, n.asks.at), n.strays.at)
}

// forgetHandles drops the book of handles that were closed with the endpoint.
func (n *neighbours) forgetHandles() { n.grave = n.grave[:0] }

// step runs the table and carries its actions out. Handles that cannot even be
// asked for are reported to the table as failed; it pauses before it asks again.
func (f *Iface) step(ev neigh.Event) {
	f.stepOnce(ev)
	for len(f.nbrs.refused) > 0 {
		id := f.nbrs.refused[0]
		f.nbrs.refused = f.nbrs.refused[1:]
		f.stepOnce(neigh.AHFailed{ID: id, Err: hca.ErrBusy})
	}
	f.collect()
}

func (f *Iface) stepOnce(ev neigh.Event) {
	n := &f.nbrs
	n.actions = n.table.Step(time.Now(), ev, n.actions[:0])
	for _, a := range n.actions {
		f.act(a)
	}
	clear(n.actions)
}

func (f *Iface) act(a neigh.Action) {
	switch a := a.(type) {
	case neigh.SendFabric:
		f.path.tx.Inject(a.Dest, a.Msg)
	case neigh.SendHost:
		f.sendHost(a.Frame)
	case neigh.CreateAH:
		f.createAH(a)
	case neigh.DestroyAH:
		f.nbrs.grave = append(f.nbrs.grave, a)
	case neigh.Publish:
		f.path.snapshot.Publish(a.Snapshot)
	}
}

// sendHost writes a frame of the slow path to the TAP, which counts what the
// kernel refuses.
func (f *Iface) sendHost(frame []byte) {
	b := append(f.nbrs.frame[:0], make([]byte, vnet.HeaderLen)...)
	f.nbrs.frame = append(b, frame...)
	if _, err := f.host.tap.WriteBatch([][]byte{f.nbrs.frame}); err != nil {
		f.log.Debug("write frame to the host", "err", err)
	}
}

func (f *Iface) createAH(a neigh.CreateAH) {
	att := f.fab.att
	if att != nil && att.ep.AHs.Create(a.ID, att.plan.PeerAH(a.DGID)) {
		return
	}
	f.nbrs.refused = append(f.nbrs.refused, a.ID)
}

func (f *Iface) ahResult(r device.AHResult) {
	if r.Err != nil {
		f.log.Debug("address handle failed", "err", r.Err)
		f.step(neigh.AHFailed{ID: r.ID, Err: r.Err})
		return
	}
	f.step(neigh.AHReady{ID: r.ID, AH: r.AH})
}

// collect closes the handles that nothing under way can use any more.
func (f *Iface) collect() {
	if len(f.nbrs.grave) == 0 || f.fab.att == nil {
		return
	}
	safe := f.path.tx.Epoch()
	f.nbrs.grave = slices.DeleteFunc(f.nbrs.grave, func(d neigh.DestroyAH) bool {
		if d.LastEpoch >= safe {
			return false
		}
		if err := f.fab.att.ep.AHs.Destroy(d.AH); err != nil {
			f.log.Error("close address handle", "err", err)
			f.accuse(err)
		}
		return true
	})
	if len(f.nbrs.grave) > 0 {
		f.path.tx.Wake()
	}
}

// hostAddrs tells the table which addresses the host answers for.
func (f *Iface) hostAddrs() {
	f.step(neigh.HostAddrs{Addrs: slices.Collect(f.host.now.SelfAddrs())})
}

// hostNeighbours tells the table what the host's own cache says: after a
// restart it knows peers that the table does not.
func (f *Iface) hostNeighbours() {
	list, err := f.host.tap.Neighbours()
	if err != nil {
		f.log.Warn("cannot read the host's neighbours", "err", err)
		return
	}
	entries := make([]neigh.Neighbour, 0, len(list))
	for _, n := range list {
		entries = append(entries, neigh.Neighbour{IP: n.IP, MAC: n.MAC})
	}
	f.step(neigh.HostNeighbours{Entries: entries})
}
