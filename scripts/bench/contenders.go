package main

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
)

// contender is a way to connect two hosts through an interface.
type contender struct {
	name     string
	mtus     []int
	programs []string // the programs that it runs; one with a slash is a path
	origin   string   // where to get missing programs
	// start creates the interface h.dev, and returns its daemon unless the kernel does
	// the work. It is called for host a, then for b.
	start func(ctx context.Context, h *host, mtu int) (*process, error)
}

// Names of programs that are built for a run, in its directory.
const (
	prototypeProgram = "limit"
	wireGuardProgram = "wireguard-go"
)

// contenders returns all contenders. dir is the directory of the run. Debian's tinc carries at
// most 1500 bytes, so its row is at the next smaller MTU. Debian 12's wireguard-go has no
// segmentation offloads, so tools/go.mod pins a newer one.
func contenders(dir string) []contender {
	limit, wireGuard := filepath.Join(dir, prototypeProgram), filepath.Join(dir, wireGuardProgram)
	return []contender{
		{name: "veth", mtus: []int{2044}, start: startVeth},
		{name: "vxlan", mtus: []int{2044}, start: startVXLAN},
		{
			name:     "prototype",
			mtus:     []int{1444, 2044, 4092},
			programs: []string{limit},
			origin:   "its source must be in " + *prototype,
			start:    startPrototype(limit),
		},
		{
			name:     "wireguard-go",
			mtus:     []int{1444, 2044, 4092},
			programs: []string{wireGuard, "wg"},
			origin:   "it is built from tools/go.mod; wg is in package wireguard-tools",
			start:    startWireGuard(wireGuard),
		},
		{
			name:     "tinc",
			mtus:     []int{1444},
			programs: []string{"tincd"},
			origin:   "package tinc",
			start:    startTinc,
		},
		{
			name:     "openvpn",
			mtus:     []int{2044},
			programs: []string{"openvpn"},
			origin:   "package openvpn",
			start:    startOpenVPN,
		},
		{
			name:     "ipoibd",
			mtus:     []int{1444, 2044, 4092},
			programs: []string{*ipoibd},
			origin:   "make build",
			start:    startIpoibd(),
		},
		{
			name:     "ipoibd-fast",
			mtus:     []int{1444, 2044, 4092},
			programs: []string{*ipoibd},
			origin:   "make build",
			start:    startIpoibd("--fast-path"),
		},
	}
}

// missing returns why the contender cannot run here, or "".
func (c contender) missing() string {
	for _, program := range c.programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Sprintf("no program %s (%s)", filepath.Base(program), c.origin)
		}
	}
	return ""
}

// join starts the contender on both hosts, and returns its daemons once a reaches b. On error,
// it returns those that it has started.
func (c contender) join(ctx context.Context, a, b *host, mtu int) (daemons []*process, err error) {
	for _, h := range []*host{a, b} {
		p, err := c.start(ctx, h, mtu)
		if p != nil {
			daemons = append(daemons, p)
		}
		if err != nil {
			return daemons, err
		}
	}
	for _, h := range []*host{a, b} {
		if err := h.retry(ctx, false, "ip", "link", "set", h.dev, "mtu", strconv.Itoa(mtu), "up"); err != nil {
			return daemons, err
		}
		if _, err := h.run(ctx, "ip", "addr", "add", h.inner+"/24", "dev", h.dev); err != nil {
			return daemons, err
		}
	}
	// A packet of the full size, because some overlays first probe the MTU.
	const headers = 20 + 8 // of IPv4 and ICMP
	size := strconv.Itoa(mtu - headers)
	return daemons, a.retry(ctx, false, "ping", "-n", "-c", "1", "-W", "0.2", "-M", "do", "-s", size, b.inner)
}

// startVeth creates a second veth pair beside the underlay.
func startVeth(ctx context.Context, h *host, _ int) (*process, error) {
	if h.name != "a" {
		return nil, nil // a has created both ends
	}
	_, err := h.run(ctx, "ip", "link", "add", h.dev, "type", "veth", "peer", "name", h.peer.dev, "netns", h.peer.name)
	return nil, err
}

func startVXLAN(ctx context.Context, h *host, _ int) (*process, error) {
	_, err := h.run(ctx, "ip", "link", "add", h.dev, "type", "vxlan", "id", "1",
		"local", h.address, "remote", h.peer.address, "dstport", "4789", "dev", underlay)
	return nil, err
}

// startPrototype chooses a segment size into which a frame of the full size fits.
func startPrototype(program string) func(context.Context, *host, int) (*process, error) {
	return func(ctx context.Context, h *host, mtu int) (*process, error) {
		const headers = 10 + 14 // of virtio and Ethernet
		return h.start(ctx, program, h.dev, h.address, h.peer.address, strconv.Itoa(mtu+headers), "1")
	}
}

func startWireGuard(program string) func(context.Context, *host, int) (*process, error) {
	return func(ctx context.Context, h *host, _ int) (*process, error) {
		own, other, err := wireGuardKeys(h)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(h.dir, "key")
		if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(own.Bytes())), 0o600); err != nil {
			return nil, err
		}
		p, err := h.start(ctx, program, "--foreground", h.dev)
		if err != nil {
			return nil, err
		}
		const port = "51820"
		return p, h.retry(ctx, false, "wg", "set", h.dev, "listen-port", port, "private-key", file,
			"peer", base64.StdEncoding.EncodeToString(other.PublicKey().Bytes()),
			"endpoint", h.peer.address+":"+port, "allowed-ips", h.peer.inner+"/32")
	}
}

// wireGuardKeys returns the keys of a host and of its peer. They are derived from the names,
// because nothing here is secret.
func wireGuardKeys(h *host) (own, other *ecdh.PrivateKey, err error) {
	key := func(name string) (*ecdh.PrivateKey, error) {
		seed := sha256.Sum256([]byte(name))
		return ecdh.X25519().NewPrivateKey(seed[:])
	}
	if own, err = key(h.name); err != nil {
		return nil, nil, err
	}
	other, err = key(h.peer.name)
	return own, other, err
}

// tincKey is the key of both hosts: tinc authenticates hosts even without encryption.
var tincKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// startTinc disables path MTU discovery: until it completes, tinc sends over TCP.
func startTinc(ctx context.Context, h *host, _ int) (*process, error) {
	key, err := tincKey()
	if err != nil {
		return nil, err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	public := pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&key.PublicKey)})
	if err := os.Mkdir(filepath.Join(h.dir, "hosts"), 0o700); err != nil {
		return nil, err
	}
	connect := ""
	if h.name == "b" { // only one host connects: simultaneous connections close each other
		connect = "ConnectTo = " + h.peer.name
	}
	files := map[string]string{
		"tinc.conf": fmt.Sprintf("Name = %s\nMode = switch\nDeviceType = tap\nInterface = %s\n%s\n",
			h.name, h.dev, connect),
		"rsa_key.priv": string(private),
	}
	for _, host := range []*host{h, h.peer} {
		files["hosts/"+host.name] = fmt.Sprintf("Address = %s\n", host.address) +
			"Cipher = none\nDigest = none\nCompression = 0\nPMTUDiscovery = no\n" + string(public)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return h.start(ctx, "tincd", "--no-detach", "--debug=1",
		"--config="+h.dir, "--pidfile="+filepath.Join(h.dir, "pid"))
}

func startOpenVPN(ctx context.Context, h *host, mtu int) (*process, error) {
	return h.start(ctx, "openvpn", "--dev", h.dev, "--dev-type", "tap",
		"--proto", "udp", "--local", h.address, "--remote", h.peer.address,
		"--cipher", "none", "--auth", "none", "--tun-mtu", strconv.Itoa(mtu))
}

func startIpoibd(flags ...string) func(context.Context, *host, int) (*process, error) {
	return func(ctx context.Context, h *host, mtu int) (*process, error) {
		return h.start(ctx, *ipoibd, append([]string{
			"run", "--name", h.dev, "--underlay", underlay,
			"--mtu", strconv.Itoa(mtu), "--control", filepath.Join(h.dir, "control.sock"),
		}, flags...)...)
	}
}
