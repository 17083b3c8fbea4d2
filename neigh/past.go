package neigh

import "slices"

// remember keeps the addresses of p, which has been removed. The host may still have p's
// MAC in its cache: Linux keeps entries forever while there are fewer than gc_thresh1
// (128). Therefore no other peer gets that MAC, a frame to it is resolved by p's IP
// addresses, and p gets its MAC back if it returns.
//
// The bounds are those of the table. The peer that was removed first makes room: within
// its class, so that heard peers do not displace used ones, and within its GID, where
// heard peers go first.
//
// Heard peers are remembered too: a peer's MAC enters the host's cache as soon as the
// peer resolves the host's address or advertises itself as a router.
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
