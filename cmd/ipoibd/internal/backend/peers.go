package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/hca"
	"ipoibd/hca/soft"
)

const (
	// refreshPeers is how often names are looked up again. A pod that joins a headless
	// service is reached within this time.
	refreshPeers = 10 * time.Second
	lookupLimit  = 5 * time.Second
	// maxNameAddrs bounds the addresses of one name, and maxNamedAddrs the addresses of
	// all names, because every multicast frame is sent to each of them. An answer of DNS has
	// less than 64 KiB, and so no more addresses of a headless service than the former.
	maxNameAddrs  = 4096
	maxNamedAddrs = 16384
	// maxComplaints bounds the refused addresses that one log message names.
	maxComplaints = 3
)

// literals is the name under which the configured addresses are known.
const literals = ""

// peerList is a list of addresses and DNS names, with the current addresses of the names. Run
// keeps it current; any goroutine may call the other exported methods.
type peerList struct {
	underlay string
	log      *slog.Logger
	resolve  func(ctx context.Context, network, host string) ([]netip.Addr, error)
	subnets  func() []netip.Prefix // of the underlay

	addrs   atomic.Pointer[[]netip.Addr]
	unknown atomic.Pointer[string] // names that cannot be looked up, and why
	refused atomic.Uint64          // addresses that no peer can have
	excess  atomic.Uint64          // addresses beyond the bounds

	changed chan struct{} // has a value after Set, for Run

	mu    sync.Mutex              // guards what follows
	names []string                // in DNS
	known map[string][]netip.Addr // addresses of each name, from its last successful look-up

	// Owned by Run:
	lost       map[string]bool     // names whose last look-up failed
	complaints diagnose.Complaints // by name
}

// newPeerList returns the list of an HCA on an underlay. It contains the literal
// addresses at once.
func newPeerList(names []string, underlay string, log *slog.Logger) *peerList {
	l := &peerList{
		underlay: underlay, log: log, resolve: net.DefaultResolver.LookupNetIP,
		subnets: func() []netip.Prefix { return subnetsOf(underlay) }, changed: make(chan struct{}, 1),
		known: map[string][]netip.Addr{}, lost: map[string]bool{}, complaints: diagnose.Complaints{},
	}
	l.Set(names)
	<-l.changed // Run begins with these
	return l
}

// Set replaces the addresses and names. The addresses are used at once, and the addresses of a name once
// Run has looked it up; a name that stays keeps its addresses. Set does not block.
func (l *peerList) Set(list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = nil
	var addrs []netip.Addr
	for _, n := range list {
		if a, err := netip.ParseAddr(n); err == nil {
			addrs = append(addrs, plain(a))
		} else {
			l.names = append(l.names, n)
		}
	}
	maps.DeleteFunc(l.known, func(name string, _ []netip.Addr) bool { return !slices.Contains(l.names, name) })
	l.known[literals] = addrs
	l.publish()
	select {
	case l.changed <- struct{}{}:
	default: // Run has not seen the last change yet
	}
}

// Addrs returns the addresses, sorted; the slice is shared and must not be
// changed.
func (l *peerList) Addrs() []netip.Addr { return *l.addrs.Load() }

// notice returns the names that cannot be resolved, with the reasons, or "".
func (l *peerList) notice() string {
	if text := l.unknown.Load(); text != nil {
		return *text
	}
	return ""
}

// Run looks the names up periodically until ctx ends. A name that cannot be looked up keeps
// its last addresses.
func (l *peerList) Run(ctx context.Context) {
	tick := time.NewTicker(refreshPeers)
	defer tick.Stop()
	for {
		select {
		case <-l.changed: // this round sees the change
		default:
		}
		l.mu.Lock()
		names := l.names
		l.mu.Unlock()
		l.refresh(ctx, names)
		due := tick.C
		if len(names) == 0 {
			due = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-l.changed:
		}
	}
}

// refresh looks up each name. A change of the list ends it early.
func (l *peerList) refresh(ctx context.Context, names []string) {
	maps.DeleteFunc(l.lost, func(name string, _ bool) bool { return !slices.Contains(names, name) })
	var failed []string
	for _, n := range names {
		if len(l.changed) > 0 {
			return
		}
		limited, cancel := context.WithTimeout(ctx, lookupLimit)
		addrs, err := l.resolve(limited, "ip", n)
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch lost := l.lost[n]; {
		case err != nil && !lost && !l.knows(n):
			l.log.Warn("cannot resolve peer, so it gets no multicast; "+
				"fix its name or its DNS records; retrying every 10 s", "name", n, "err", err)
		case err != nil && !lost:
			l.log.Warn("cannot resolve peer; keeping its last known addresses", "name", n, "err", err)
		case err == nil && lost:
			l.log.Info("peer can be resolved again", "name", n)
		}
		if l.lost[n] = err != nil; err != nil {
			failed = append(failed, fmt.Sprintf("cannot resolve peer %s: %v", n, err))
			continue
		}
		l.learn(n, l.accept(n, addrs))
	}
	text := strings.Join(failed, "; ")
	l.unknown.Store(&text)
}

// knows reports whether a name has addresses.
func (l *peerList) knows(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.known[name]) > 0
}

// learn records the addresses of a name, unless the name is no longer in the list.
func (l *peerList) learn(name string, addrs []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.names, name) {
		l.known[name] = addrs
		l.publish()
	}
}

// room returns how many addresses a name may have beside the other names.
func (l *peerList) room(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := maxNamedAddrs
	for other, addrs := range l.known {
		if other != literals && other != name {
			room -= len(addrs)
		}
	}
	return min(maxNameAddrs, room)
}

// accept returns the addresses in an answer that a peer can have. If there are too
// many, it keeps the lowest, so that each look-up makes the same choice. It counts and
// logs the others.
func (l *peerList) accept(name string, answer []netip.Addr) []netip.Addr {
	subnets := l.subnets()
	var good []netip.Addr
	var bad []string
	for _, a := range answer {
		err := soft.CheckPeer(a, l.underlay)
		if err == nil && isBroadcast(a.Unmap(), subnets) {
			err = errSubnetBroadcast
		}
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", a, err))
			continue
		}
		good = append(good, plain(a))
	}
	slices.SortFunc(good, netip.Addr.Compare)
	good = slices.Compact(good)
	excess := max(0, len(good)-l.room(name))
	l.refused.Add(uint64(len(bad)))
	l.excess.Add(uint64(excess))
	l.complain(name, bad, excess)
	return good[:len(good)-excess]
}

var errSubnetBroadcast = errors.New("it is the broadcast address of a subnet of the underlay")

// complain logs which addresses of an answer are not used. It does so only if they have
// changed, and at most once per diagnose.ComplainEvery.
func (l *peerList) complain(name string, bad []string, excess int) {
	text := ""
	if len(bad) > 0 || excess > 0 {
		slices.Sort(bad)
		named := strings.Join(bad[:min(len(bad), maxComplaints)], "; ")
		text = fmt.Sprintf("%d refused (%s), %d too many", len(bad), named, excess)
	}
	switch {
	case !l.complaints.Due(time.Now(), name, text, diagnose.ComplainEvery):
	case text == "":
		l.log.Info("all addresses of the peer are used again", "name", name)
	default:
		l.log.Warn("some addresses of the peer are not used; fix its DNS records", "name", name, "addresses", text,
			"most_of_a_name", maxNameAddrs, "most_of_all_names", maxNamedAddrs)
	}
}

// Counters returns how many addresses in the answers of look-ups were not used.
func (l *peerList) Counters() []hca.Counter {
	return []hca.Counter{
		{Name: "peer_addrs_refused", Kind: hca.CountError, Value: l.refused.Load()},
		{Name: "peer_addrs_excess", Kind: hca.CountError, Value: l.excess.Load()},
	}
}

// subnetsOf returns the subnets of a netdev, or none if they cannot be read.
func subnetsOf(netdev string) (out []netip.Prefix) {
	dev, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil
	}
	addrs, _ := dev.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// isBroadcast reports whether an address is the last one of an IPv4 subnet, which is
// its broadcast address unless the subnet has two addresses or one (RFC 3021).
func isBroadcast(a netip.Addr, subnets []netip.Prefix) bool {
	return slices.ContainsFunc(subnets, func(p netip.Prefix) bool {
		return a.Is4() && p.Bits() < 31 && p.Contains(a) && !p.Contains(a.Next())
	})
}

// plain returns an address in the form that the software HCA compares: IPv4 as 4 bytes, IPv6
// without a zone, because the netdev is known.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// publish replaces the list that readers see, if it has changed. l.mu is held.
func (l *peerList) publish() {
	var all []netip.Addr
	for _, addrs := range l.known {
		all = append(all, addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	if now := l.addrs.Load(); now == nil || !slices.Equal(*now, all) {
		l.addrs.Store(&all) // readers recognize a change by the new slice
	}
}
