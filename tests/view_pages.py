"A packed run or a page of it, opened in Python as the browser opens it"
import base64, json, re, zlib
import numpy as np

class Opened:
    "Header, cells and texts of a page"
    def __init__(self, packed):
        if isinstance(packed, str):
            data = re.search(r'<script type="application/json" id="data">(.*?)</script>', packed, re.S)[1]
            packed = json.loads(data)
            read = lambda x: base64.b64decode(x)
            packed = {k: {int(i): read(x) for i, x in v.items()} if isinstance(v, dict) else read(v)
                      for k, v in packed.items()}
        self.packed,self.head = packed,json.loads(zlib.decompress(packed['head']))
        self.S,self.B = len(self.head['steps']),self.head['groups']
    def array(self, name, dtype):
        return np.frombuffer(zlib.decompress(self.packed[name]), dtype).reshape(self.S, self.B)
    def state(self, version=0): return self.array(f'state{version}', np.uint8)
    def by(self, version=0): return self.array(f'by{version}', np.int32)
    def stored(self, version=0): return self.head['versions'][version]['stored']
    def texts(self, s):
        block = self.packed['texts'].get(s//self.head['per_block'])
        return None if block is None else json.loads(zlib.decompress(block))[s%self.head['per_block']]
