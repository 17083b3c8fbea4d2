package udp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Reserve keeps the two sockets of a netdev bound between one transport and the next, so
// that no other process can bind their ports in between. While no transport uses the
// receiving socket, a filter refuses every datagram. The zero value reserves nothing yet.
// A Reserve serves one network namespace, and one transport at a time, or one for each lane. It
// refuses another number of lanes than the first transport on a netdev has asked for.
type Reserve struct {
	mu    sync.Mutex
	index int // of the netdev that the sockets are bound to
	lanes int // Config.Lanes when they were bound
	bound *ports
	taken int // transports that use them

	drops []uint32 // of each inherited lane, as last counted; nil once its transports were closed
	given bool     // another process takes over the sockets: see GiveUp

	destroyed atomic.Uint64
}

// Destroyed returns how often the sockets were bound again because another process had destroyed
// one of them.
func (r *Reserve) Destroyed() uint64 { return r.destroyed.Load() }

// acquire returns the reserved sockets, and descriptors of the first lane's sockets. If there are
// none yet, or the netdev is another one, it first binds new sockets; the previous netdev's sockets
// stay bound until the new ones are. With fewer lanes than sockets, the kernel would deliver
// datagrams to sockets from which no transport receives, so acquire refuses another number of lanes.
func (r *Reserve) acquire(cfg *Config, netdev *transport.State) (recv, send *socket, p *ports, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken > 0 {
		return nil, nil, nil, fmt.Errorf("another transport of this process uses UDP port %d: %w", Port, hca.ErrBusy)
	}
	lanes := max(1, cfg.Lanes)
	if r.bound != nil && r.index == netdev.Index && r.lanes != lanes {
		return nil, nil, nil, fmt.Errorf("open %d lanes with a Reserve for %d lanes, without closing it first: %w",
			lanes, r.lanes, hca.ErrInvalid)
	}
	inherited := r.drops != nil // these sockets receive already
	if r.bound != nil && r.index == netdev.Index && !inherited && !r.bound.intact(r.index) {
		_ = r.bound.close() // first, because the new sockets need the ports
		r.bound = nil
		r.destroyed.Add(1)
	}
	if r.bound == nil || r.index != netdev.Index {
		next, err := openPorts(cfg, netdev)
		if err != nil {
			return nil, nil, nil, err
		}
		_ = r.bound.close()
		r.bound, r.index, r.lanes, r.drops = next, netdev.Index, lanes, nil
	}
	recv, send, err = r.lend(r.bound, 0)
	return recv, send, r.bound, err
}

// acquireLane returns descriptors of the reserved sockets of a lane after the first one.
func (r *Reserve) acquireLane(p *ports, lane int) (recv, send *socket, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bound != p {
		return nil, nil, hca.ErrClosed
	}
	return r.lend(p, lane)
}

// lend returns descriptors of the sockets of a lane, for one transport. r.mu is held.
func (r *Reserve) lend(p *ports, lane int) (recv, send *socket, err error) {
	if lane < len(r.drops) {
		recv, send, err = p.lendOn(lane, r.drops[lane])
	} else {
		recv, send, err = p.lend(lane)
	}
	if err == nil {
		r.taken++
	}
	return recv, send, err
}

// giveBack ends a transport's use of the sockets. The transport must call it before it
// closes its descriptor of the receiving socket.
func (r *Reserve) giveBack(lent *socket) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken--; r.taken == 0 {
		r.drops = nil
	}
	if r.given {
		return nil
	}
	var err error
	if cerr := lent.raw.Control(func(fd uintptr) { err = refuseAll(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// Close releases the ports. If a transport still uses them, they become free when it is
// closed.
func (r *Reserve) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.bound.close()
	r.bound = nil
	return err
}
