package neigh

import "slices"

// remember keeps the names of p, which is forgotten. The host may still have the MAC of p
// in its cache: Linux keeps an entry for ever while there are fewer than gc_thresh1 (128).
// So no other peer gets that MAC, and a frame to it is resolved by the addresses of p. A
// peer that comes back gets its MAC again.
//
// The bounds are those of the table. The peer forgotten first makes room: in its class,
// so that peers that only spoke do not displace one that the host sent data to, and at
// its GID, where a peer that only spoke goes first.
//
// The heard class is remembered too. The host has the MAC of a peer in its cache as soon
// as the peer has asked for the host, or has advertised itself as a router.
func (t *Table) remember(p *peer) {
	p.used = p.busy()
	if older := t.past.byEndpoint[p.endpoint]; older != nil {
		t.past.remove(older)
	}
	for _, ip := range p.ips {
		t.past.unbind(ip)
	}
	if there := t.past.byGID[p.gid]; len(there) >= maxPeersPerGID {
		heard := slices.IndexFunc(there, func(p *peer) bool { return !p.used })
		t.past.remove(there[max(heard, 0)])
	}
	most := t.conf.MaxHeard
	if p.used {
		most = t.conf.MaxPeers - t.conf.MaxHeard
	}
	if class := t.past.class(p); class.Len() >= most {
		t.past.remove(oldest(class))
	}
	t.past.add(p)
}
