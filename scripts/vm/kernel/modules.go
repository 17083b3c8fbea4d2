package kernel

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// wanted are the modules that guests load, in addition to those that these need.
// Modules that a series has built in are skipped.
var wanted = map[Arch][]string{
	AMD64: {
		"virtio_pci", "virtio_net", // the NICs
		"virtio_console", // the channel to the agent
		"crc32_generic",  // rdma_rxe requests "crc32" by name, which depmod cannot see
		"ib_uverbs", "ib_umad", "rdma_rxe",
		"tun", "veth", "macvlan", "dummy", "bridge", "8021q",
		"sch_netem", "sch_tbf", "sch_ingress", "cls_bpf",
		"tcp_diag", "udp_diag", // ss
	},
	ARM64: {"virtio_pci", "virtio_console", "tun", "veth", "sch_ingress", "cls_bpf"}, // for eBPF programs
}

// infiniBand are the modules that tests on an InfiniBand subnet load in addition.
var infiniBand = map[Arch][]string{AMD64: {"rdmavt", "ib_ipoib"}}

// The folders of a kernel with these modules.
const (
	modulesDir    = "modules"
	infiniBandDir = "infiniband"
)

// wantedHash distinguishes lists of modules.
func wantedHash(arch Arch) string {
	sum := sha256.Sum256([]byte(strings.Join(wanted[arch], " ") + "\n" + strings.Join(infiniBand[arch], " ")))
	return fmt.Sprintf("%x", sum[:4])
}

// extractModules writes the modules of an unpacked package into the folders of a kernel, as
// 00-name.ko and so on, in loading order.
func extractModules(ctx context.Context, tree, release, into string, arch Arch) error {
	if _, err := command(ctx, "", "depmod", "--basedir", tree, release); err != nil {
		return err
	}
	base := filepath.Join(tree, "lib", "modules", release)
	dep, err := os.ReadFile(filepath.Join(base, "modules.dep"))
	if err != nil {
		return err
	}
	builtin, err := os.ReadFile(filepath.Join(base, "modules.builtin"))
	if err != nil {
		return err
	}
	modules, isBuiltin := parseDeps(string(dep)), parseBuiltin(string(builtin))
	first, err := loadOrder(wanted[arch], modules, isBuiltin)
	if err != nil {
		return err
	}
	all, err := loadOrder(slices.Concat(wanted[arch], infiniBand[arch]), modules, isBuiltin)
	if err != nil {
		return err
	}
	for i, path := range all { // begins with first
		folder := modulesDir
		if i >= len(first) {
			folder = infiniBandDir
		}
		data, err := os.ReadFile(filepath.Join(base, path))
		if err != nil {
			return err
		}
		file := filepath.Join(into, folder, fmt.Sprintf("%02d-%s.ko", i, moduleName(path)))
		if err := decompress(ctx, data, file); err != nil {
			return err
		}
	}
	return nil
}

// module is an entry of modules.dep.
type module struct {
	path  string
	needs []string // paths of other modules, each before those that it needs itself
}

// parseDeps reads modules.dep (modules.dep(5)): "path: path path...".
func parseDeps(text string) map[string]module {
	modules := map[string]module{}
	for line := range strings.Lines(text) {
		path, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
		modules[moduleName(path)] = module{path, strings.Fields(needs)}
	}
	return modules
}

// parseBuiltin reads modules.builtin: one path in each line.
func parseBuiltin(text string) map[string]bool {
	names := map[string]bool{}
	for path := range strings.FieldsSeq(text) {
		names[moduleName(path)] = true
	}
	return names
}

// loadOrder returns the paths of the named modules and of those that they need.
func loadOrder(names []string, modules map[string]module, builtin map[string]bool) (order []string, err error) {
	for _, name := range names {
		m, ok := modules[name]
		if !ok && !builtin[name] {
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		if ok {
			order = appendModule(order, m)
		}
	}
	return order, nil
}

// appendModule appends the modules that a module needs, then the module, each once.
func appendModule(order []string, m module) []string {
	paths := append([]string{m.path}, m.needs...) // each before those that it needs
	for _, path := range slices.Backward(paths) {
		if !slices.Contains(order, path) {
			order = append(order, path)
		}
	}
	return order
}

// moduleName returns the kernel's name of a module: a_b for crypto/a-b.ko.xz.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
