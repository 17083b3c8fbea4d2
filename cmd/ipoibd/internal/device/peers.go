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
	names   []string
	log     *slog.Logger
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)

	addrs atomic.Pointer[[]netip.Addr]
	known map[string][]netip.Addr // last good answer of each name; owned by Run
	lost  map[string]bool         // names that could not be looked up last; owned by Run
}

// NewPeerList returns a list; literal addresses are in it at once.
func NewPeerList(names []string, log *slog.Logger) *PeerList {
	l := &PeerList{
		names: names, log: log, resolve: net.DefaultResolver.LookupNetIP,
		known: map[string][]netip.Addr{}, lost: map[string]bool{},
	}
	for _, n := range names {
		if a, err := netip.ParseAddr(n); err == nil {
			l.known[n] = []netip.Addr{plain(a)}
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
		err := l.lookup(ctx, n)
		if ctx.Err() != nil {
			return
		}
		l.report(n, err)
		l.publish()
	}
}

// report logs that a name cannot be looked up, once, and the end of that.
func (l *PeerList) report(name string, err error) {
	switch lost := l.lost[name]; {
	case err != nil && !lost:
		l.log.Warn("cannot look up peer; its last addresses stay", "name", name, "err", err)
	case err == nil && lost:
		l.log.Info("peer can be looked up again", "name", name)
	}
	l.lost[name] = err != nil
}

func (l *PeerList) lookup(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := l.resolve(ctx, "ip", name)
	if err != nil {
		return err
	}
	for i := range addrs {
		addrs[i] = plain(addrs[i])
	}
	l.known[name] = addrs
	return nil
}

// plain is an address as the software HCA compares it: IPv4 in its 4-byte form,
// IPv6 without a zone, since the netdev is known.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func (l *PeerList) publish() {
	var all []netip.Addr
	for _, addrs := range l.known {
		all = append(all, addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	if now := l.addrs.Load(); now == nil || !slices.Equal(*now, all) {
		l.addrs.Store(&all) // whoever keeps the old one knows it by its pointer
	}
}
