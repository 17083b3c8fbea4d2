package device

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// refreshPeers is how often names are looked up again: a pod that joined a
	// headless service is reached within it.
	refreshPeers = 10 * time.Second
	lookupLimit  = 5 * time.Second
)

// PeerList is a list of addresses and DNS names with what they stand for now.
// Run keeps it; anybody may read Addrs.
type PeerList struct {
	names []string
	log   *slog.Logger
	addrs atomic.Pointer[[]netip.Addr]
	known map[string][]netip.Addr // last good answer of each name; owned by Run
}

// NewPeerList returns a list; literal addresses are in it at once.
func NewPeerList(names []string, log *slog.Logger) *PeerList {
	l := &PeerList{names: names, log: log, known: map[string][]netip.Addr{}}
	for _, n := range names {
		if a, err := netip.ParseAddr(n); err == nil {
			l.known[n] = []netip.Addr{a.Unmap()}
		}
	}
	l.publish()
	return l
}

// Addrs returns the addresses, sorted; the slice is shared and must not be
// changed.
func (l *PeerList) Addrs() []netip.Addr { return *l.addrs.Load() }

// Run looks the names up from time to time until ctx ends. A name that cannot
// be looked up keeps its last addresses.
func (l *PeerList) Run(ctx context.Context) {
	tick := time.NewTicker(refreshPeers)
	defer tick.Stop()
	for {
		l.refresh(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (l *PeerList) refresh(ctx context.Context) {
	for _, n := range l.names {
		if _, err := netip.ParseAddr(n); err == nil {
			continue
		}
		if err := l.lookup(ctx, n); err != nil && ctx.Err() == nil {
			l.log.Warn("cannot look up peer", "name", n, "err", err)
		}
	}
	l.publish()
}

func (l *PeerList) lookup(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	l.known[name] = addrs
	return nil
}

func (l *PeerList) publish() {
	var all []netip.Addr
	for _, addrs := range l.known {
		all = append(all, addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	l.addrs.Store(&all)
}
