"""The work of `python`: objects, dictionaries, lists, generators and large numbers. Reads a number of rounds."""

import sys


class Node:
    def __init__(self, key):
        self.key, self.left, self.right = key, None, None


class Tree:
    def __init__(self):
        self.root, self.size = None, 0

    def add(self, key):
        if self.root is None:
            self.root = Node(key)
        else:
            node = self.root
            while node.key != key:
                side = "left" if key < node.key else "right"
                if getattr(node, side) is None:
                    setattr(node, side, Node(key))
                    break
                node = getattr(node, side)
            else:
                return
        self.size += 1

    def walk(self):
        stack, node = [], self.root
        while stack or node:
            while node:
                stack.append(node)
                node = node.left
            node = stack.pop()
            yield node.key
            node = node.right


def numbers(seed, count):
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield seed >> 40


def queens(size):
    count, stack = 0, [(0, 0, 0, 0)]
    while stack:
        row, columns, left, right = stack.pop()
        if row == size:
            count += 1
            continue
        free = ~(columns | left | right) & ((1 << size) - 1)
        while free:
            bit = free & -free
            free ^= bit
            stack.append((row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1))
    return count


def one(number):
    tree, table = Tree(), {}
    for key in numbers(number, 2000):
        tree.add(key)
        table.setdefault("%06x" % key, []).append(key)
    order = list(tree.walk())
    assert order == sorted(set(order))
    power = pow(3, 500 + number % 7) // 7 ** 100
    return tree.size, len(table), sum(order), queens(6), str(power)[:20], max(table)


for number in range(int(sys.argv[1])):
    print(number, *one(number))
