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

// wanted are the modules that guests load, besides those which these need. Where
// a series has one built in, its name is passed over.
var wanted = []string{
	"virtio_pci", "virtio_net", // the NICs
	"virtio_console", // the channel to the agent
	"crc32_generic",  // rdma_rxe asks for crc32 by that name, and depmod cannot know
	"ib_uverbs", "ib_umad", "rdma_rxe",
	"tun", "veth", "macvlan", "dummy", "bridge",
	"sch_netem", "sch_tbf",
	"tcp_diag", "udp_diag", // ss
}

// wantedHash tells lists of modules apart.
func wantedHash() string {
	sum := sha256.Sum256([]byte(strings.Join(wanted, " ")))
	return fmt.Sprintf("%x", sum[:4])
}

// extractModules writes the wanted modules of an unpacked package into a folder,
// as 00-name.ko and so on in the order of loading.
func extractModules(ctx context.Context, tree, release, into string) error {
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
	order, err := loadOrder(wanted, parseDeps(string(dep)), parseBuiltin(string(builtin)))
	if err != nil {
		return err
	}
	for i, path := range order {
		data, err := os.ReadFile(filepath.Join(base, path))
		if err != nil {
			return err
		}
		if err := decompress(ctx, data, filepath.Join(into, fmt.Sprintf("%02d-%s.ko", i, moduleName(path)))); err != nil {
			return err
		}
	}
	return nil
}

// module is what modules.dep says of one.
type module struct {
	path  string
	needs []string // paths of others, each before those that it needs itself
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

// loadOrder lists the paths of modules, by name, and of what they need.
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

// appendModule appends a module after those that it needs, each once.
func appendModule(order []string, m module) []string {
	paths := append([]string{m.path}, m.needs...) // each before what it needs
	for _, path := range slices.Backward(paths) {
		if !slices.Contains(order, path) {
			order = append(order, path)
		}
	}
	return order
}

// moduleName is the name as the kernel has it: crypto/a-b.ko.xz is a_b.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
