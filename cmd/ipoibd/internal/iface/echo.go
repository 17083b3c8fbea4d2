package iface

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/ud/ipoib"
)

// maxPings bounds the pings that wait for an answer.
const maxPings = 64

// Errors of Ping.
var (
	// ErrNoPeer reports a neighbour that is not in the peer table.
	ErrNoPeer = errors.New("no peer has this MAC; 'ipoibd status -v' lists the peers")
	// ErrPings reports that there are too many pings.
	ErrPings = fmt.Errorf("too many pings are waiting for an answer (the limit is %d); try again later", maxPings)
)

// echoes are the pings that wait for an answer, by ID. The interface's goroutine owns it.
type echoes map[uint64]waiting

type waiting struct {
	since time.Time
	out   chan *report.Echo
}

// answered passes an answer to the ping that waits for it. It returns false if none does.
func (e echoes) answered(r neigh.EchoReply) bool {
	w, ok := e[r.ID]
	if ok {
		delete(e, r.ID)
		w.out <- &report.Echo{GID: r.GID, QPN: r.QPN, RoundTrip: journal.Seconds(time.Since(w.since))}
	}
	return ok
}

// Ping sends an echo request of size bytes, without IPoIB header, to a peer and waits for the
// answer until ctx ends: nil means that none arrived. The target is an IP address on the link, which is resolved if
// necessary, or the GID or MAC of a known peer. Any goroutine may call it. Errors:
// ErrNothing, ErrNoPeer, ErrPings, hca.ErrInvalid, or why the interface has ended.
func (f *Iface) Ping(ctx context.Context, target string, size int) (*report.Echo, error) {
	id, out := rand.Uint64(), make(chan *report.Echo, 1)
	var refused error
	if err := f.do(ctx, func() {
		if refused = f.rec.nothing(); refused == nil {
			refused = f.nbrs.ping(id, target, size, f.host.now.MTU, out)
		}
	}); err != nil || refused != nil {
		return nil, cmp.Or(err, refused)
	}
	select {
	case e := <-out:
		return e, nil
	case <-f.done:
		return nil, cmp.Or(f.end, errEnded)
	case <-ctx.Done():
	}
	// It ends with the interface at the latest.
	_ = f.do(context.WithoutCancel(ctx), func() { delete(f.nbrs.echoes, id) })
	return nil, nil
}

// ping sends an echo request of size bytes, at most mtu, whose answer goes to out.
func (n *neighbours) ping(id uint64, target string, size, mtu int, out chan *report.Echo) error {
	switch {
	case size < ipoib.MinEcho || size > mtu:
		return fmt.Errorf("a size of %d bytes: it must be from %d to the MTU of %d: %w",
			size, ipoib.MinEcho, mtu, hca.ErrInvalid)
	case len(n.echoes) >= maxPings:
		return ErrPings
	}
	ping, err := n.find(target)
	if err != nil {
		return err
	}
	ping.ID, ping.Size = id, size
	n.echoes[id] = waiting{time.Now(), out}
	n.step(ping)
	return nil
}

// find returns a ping to a target without ID and size. An address that is both bound to a peer
// and the GID of another stands for the former.
func (n *neighbours) find(target string) (neigh.Ping, error) {
	peers := n.table.Peers()
	to := func(is func(neigh.PeerInfo) bool) (neigh.Ping, bool) {
		i := slices.IndexFunc(peers, is)
		if i < 0 {
			return neigh.Ping{}, false
		}
		return neigh.Ping{GID: peers[i].GID, QPN: peers[i].QPN}, true
	}
	if mac, err := net.ParseMAC(target); err == nil && len(mac) == len(ipoib.MAC{}) {
		if p, ok := to(func(p neigh.PeerInfo) bool { return p.MAC == ipoib.MAC(mac) }); ok {
			return p, nil
		}
		return neigh.Ping{}, ErrNoPeer
	}
	ip, err := netip.ParseAddr(target)
	if err != nil {
		return neigh.Ping{}, fmt.Errorf("%q is not an IP address, a GID or a MAC: %w", target, hca.ErrInvalid)
	}
	if _, bound := to(func(p neigh.PeerInfo) bool { return slices.Contains(p.IPs, ip.WithZone("")) }); !bound {
		if p, ok := to(func(p neigh.PeerInfo) bool { return p.GID == hca.GIDFromAddr(ip) }); ok {
			return p, nil
		}
	}
	return neigh.Ping{IP: ip}, nil
}
